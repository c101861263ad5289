//@if improve=rebuild-brief,rebuild-long,rebuild
// Ruin and recreate under a lowered ceiling: with one row less, some pieces are homeless.  Again and again a small window
// is emptied and filled anew from its own pieces and some homeless ones; when all have a home, the ceiling goes down again.
class Rebuilder {
public:
    Rebuilder(const std::vector<Piece>& pieces, const Packing& start)
        : pieces_(pieces), now_(start), best_(start), width_(static_cast<int>(start.width)),
          height_(static_cast<int>(start.height)), grid_(width_),
          owner_(static_cast<std::size_t>(width_) * static_cast<std::size_t>(height_), kNobody) {
        for (std::size_t id = 0; id < pieces.size(); ++id) mark(static_cast<int>(id), true);
        lower_ceiling();
    }

    Packing run() {
        while (!budget.spent(end_) && height_ > 1) {
            for (int i = 0; i < 16; ++i) {
                if (homeless_.empty()) {
                    best_ = now_;
                    best_.height = height_;
                    lower_ceiling();
                }
                rebuild_window();
            }
        }
        return best_;
    }

private:
    static constexpr int kNobody = -1;

    // How much of the work that is left may be spent.
    //@if improve=rebuild-brief
    static constexpr double kShare = 0.1;
    //@endif
    //@if improve=rebuild-long
    static constexpr double kShare = 0.35;
    //@endif
    //@if improve=rebuild
    static constexpr double kShare = 1.0;
    //@endif

    // Falls from 1 to 0 while the work is being spent.
    double work_left() const { return (end_ - budget.progress()) / (end_ - begin_); }

    int& owner(int x, int y) { return owner_[static_cast<std::size_t>(y) * static_cast<std::size_t>(width_) + x]; }

    const Variant& variant_of(int id) const { return pieces_[id].variants[now_.spots[id].variant]; }

    // Lays a piece down at its spot, or takes it up again.
    void mark(int id, bool down) {
        const Variant& variant = variant_of(id);
        const Spot& spot = now_.spots[id];
        grid_.put(variant, spot.x, spot.y);
        for (int i = 0; i < variant.count; ++i) {
            owner(spot.x + variant.cells[i].x, spot.y + variant.cells[i].y) = down ? id : kNobody;
        }
    }

    void lower_ceiling() {
        --height_;
        grid_.set_ceiling(height_);
        for (int x = 0; x < width_; ++x) {
            const int id = owner(x, height_);
            if (id == kNobody) continue;
            // The wall hides the cells above it, but they have to be free when the piece is put back below.
            mark(id, false);
            homeless_.push_back(id);
        }
    }

    void rebuild_window() {
        const int side = 3 + dice.below(4);
        int x = dice.below(width_), y = dice.below(height_);
        for (int tries = dice.below(2) * 20; tries > 0 && owner(x, y) != kNobody; --tries) {
            x = dice.below(width_);
            y = dice.below(height_);
        }
        const int left = std::max(0, x - side / 2), right = std::min(width_, left + side);
        const int low = std::max(0, y - side / 2), high = std::min(height_, low + side);
        empty_window(left, right, low, high);
        const std::vector<int> candidates = pool_;
        int lost = 0;
        for (int id : removed_) lost += pieces_[id].size;
        for (int id : refill()) lost -= pieces_[id].size;
        const double heat = std::max(0.3, work_left());
        if (lost <= 0 || dice.unit() < std::exp(-lost / heat)) {
            keep(candidates);
        } else {
            undo();
        }
    }

    // Takes up all pieces that touch the window; they and a few homeless ones become the pool to refill from.
    void empty_window(int left, int right, int low, int high) {
        removed_.clear();
        old_spots_.clear();
        left_ = left, right_ = right, low_ = low, high_ = high;
        for (int y = low; y < high; ++y) {
            for (int x = left; x < right; ++x) {
                const int id = owner(x, y);
                if (id == kNobody) continue;
                const Variant& variant = variant_of(id);
                const Spot& spot = now_.spots[id];
                left_ = std::min(left_, spot.x);
                right_ = std::max(right_, spot.x + variant.width);
                low_ = std::min(low_, spot.y);
                high_ = std::max(high_, spot.y + variant.height);
                removed_.push_back(id);
                old_spots_.push_back(spot);
                mark(id, false);
            }
        }
        pool_ = removed_;
        const int guests = std::min<int>(6, static_cast<int>(homeless_.size()));
        for (int i = 0; i < guests; ++i) {
            std::swap(homeless_[i], homeless_[i + dice.below(static_cast<int>(homeless_.size()) - i)]);
            pool_.push_back(homeless_[i]);
        }
    }

    // Covers the free cells of the emptied area in reading order with the pool's best fitting pieces.
    const std::vector<int>& refill() {
        placed_.clear();
        for (int y = low_; y < high_; ++y) {
            for (int x = left_; x < right_ && !pool_.empty(); ++x) {
                if (owner(x, y) != kNobody || dice.below(16) == 0) continue;
                Spot best;
                double best_worth = 0;
                std::size_t best_index = 0;
                for (std::size_t i = 0; i < pool_.size(); ++i) {
                    const Piece& piece = pieces_[pool_[i]];
                    for (std::size_t v = 0; v < piece.variants.size(); ++v) {
                        const Variant& variant = piece.variants[v];
                        budget.spend(2);
                        if (!grid_.fits(variant, x - variant.foot, y)) continue;
                        budget.spend(4);
                        const double value = grid_.contact(variant, x - variant.foot, y) + 3.0 * dice.unit();
                        if (best.variant >= 0 && value <= best_worth) continue;
                        best = {static_cast<int>(v), x - variant.foot, y};
                        best_worth = value;
                        best_index = i;
                    }
                }
                if (best.variant < 0) continue;
                const int id = pool_[best_index];
                now_.spots[id] = best;
                mark(id, true);
                placed_.push_back(id);
                pool_.erase(pool_.begin() + static_cast<std::ptrdiff_t>(best_index));
            }
        }
        return placed_;
    }

    // What is left in the pool is homeless now; everything else in it has found a place.
    void keep(const std::vector<int>& candidates) {
        const auto was_candidate = [&](int id) {
            return std::find(candidates.begin(), candidates.end(), id) != candidates.end();
        };
        homeless_.erase(std::remove_if(homeless_.begin(), homeless_.end(), was_candidate), homeless_.end());
        homeless_.insert(homeless_.end(), pool_.begin(), pool_.end());
    }

    void undo() {
        for (int id : placed_) mark(id, false);
        for (std::size_t i = 0; i < removed_.size(); ++i) {
            now_.spots[removed_[i]] = old_spots_[i];
            mark(removed_[i], true);
        }
    }

    const std::vector<Piece>& pieces_;
    Packing now_, best_;
    int width_, height_;
    double begin_ = budget.progress(), end_ = begin_ + kShare * (1.0 - begin_);
    Grid grid_;
    std::vector<int> owner_;
    std::vector<int> homeless_, removed_, pool_, placed_;
    std::vector<Spot> old_spots_;
    int left_ = 0, right_ = 0, low_ = 0, high_ = 0;
};

Packing improved(const std::vector<Piece>& pieces, const std::vector<int>&, Packing best) {
    return Rebuilder(pieces, best).run();
}

//@endif
