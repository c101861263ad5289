//@if grid
// ---- occupied cells ------------------------------------------------------------------------------------------------

// One bit a cell; everything left of, right of and below the strip counts as occupied.
class Grid {
public:
    explicit Grid(int width) : width_(width), words_((width + 2 * kMargin) / 64 + 2) {}

    int width() const { return width_; }

    // Rows from `height` up become a wall, so that nothing can grow beyond it (-1: no ceiling).
    void set_ceiling(int height) { ceiling_ = height; }

    bool occupied(int x, int y) { return (window(x, y) & 1) != 0; }

    // The 64 cells from (x, y) to the right, lowest bit first.
    std::uint64_t window(int x, int y) {
        if (y < 0 || (ceiling_ >= 0 && y >= ceiling_)) return ~0ULL;
        reserve(y);
        const std::uint64_t* word = &bits_[static_cast<std::size_t>(y) * words_ + (x + kMargin) / 64];
        const int offset = (x + kMargin) % 64;
        return offset == 0 ? word[0] : (word[0] >> offset) | (word[1] << (64 - offset));
    }

    bool fits(const Variant& variant, int x, int y) {
        if (x < 0 || x + variant.width > width_) return false;
        for (int row = 0; row < variant.height; ++row) {
            if (window(x, y + row) & variant.rows[row]) return false;
        }
        return true;
    }

    // Where the piece fits among the 64 places (x, y), (x + 1, y), ...: one bit each.
    std::uint64_t free_starts(const Variant& variant, int x, int y) {
        budget.spend(4);
        std::uint64_t blocked = 0;
        for (int i = 0; i < variant.count; ++i) blocked |= window(x + variant.cells[i].x, y + variant.cells[i].y);
        return ~blocked;
    }

    // Lays the piece down, or takes it up again if it lies there.
    void put(const Variant& variant, int x, int y) {
        for (int i = 0; i < variant.count; ++i) flip(x + variant.cells[i].x, y + variant.cells[i].y);
    }

    void flip(int x, int y) {
        reserve(y);
        bits_[static_cast<std::size_t>(y) * words_ + (x + kMargin) / 64] ^= 1ULL << ((x + kMargin) % 64);
    }

    bool full_row(int y) {
        for (int x = 0; x < width_; x += 64) {
            if (~window(x, y) != 0) return false;
        }
        return true;
    }

    // Edges of the piece that would touch occupied cells or walls.
    int contact(const Variant& variant, int x, int y) {
        int edges = 0;
        for (int row = -1; row <= variant.height; ++row) {
            const std::uint64_t here = mask(variant, row), above = mask(variant, row + 1), below = mask(variant, row - 1);
            const std::uint64_t outside = window(x - 1, y + row) & ~here;
            edges += count(outside & above) + count(outside & below);
            edges += count(outside & (here << 1)) + count(outside & (here >> 1));
        }
        return edges;
    }

    //@if fit=pockets
    // Free cells beside the piece that it would shut in: four for a cell with no free neighbour left, one for a dead end.
    int pockets(const Variant& variant, int x, int y) {
        int found = 0;
        for (int row = -1; row <= variant.height; ++row) {
            const std::uint64_t here = mask(variant, row), above = mask(variant, row + 1), below = mask(variant, row - 1);
            const std::uint64_t taken = window(x - 1, y + row) | here;
            const std::uint64_t beside = (above | below | (here << 1) | (here >> 1)) & ~taken;
            if (beside == 0) continue;
            const std::uint64_t up = window(x - 1, y + row + 1) | above, down = window(x - 1, y + row - 1) | below;
            const std::uint64_t left = (taken << 1) | (window(x - 2, y + row) & 1), right = taken >> 1;
            const std::uint64_t shut = up & down & left & right & beside;
            const std::uint64_t three = (up & down & (left | right)) | (left & right & (up | down));
            found += 4 * count(shut) + count(three & beside & ~shut);
        }
        return found;
    }

    //@endif
private:
    static constexpr int kMargin = 16;

    static int count(std::uint64_t bits) { return __builtin_popcountll(bits); }

    // A row of the piece in a window that starts one cell left of it.
    static std::uint64_t mask(const Variant& variant, int row) {
        return row < 0 || row >= variant.height ? 0 : static_cast<std::uint64_t>(variant.rows[row]) << 1;
    }

    void reserve(int y) {
        while (static_cast<std::size_t>(y + 1) * words_ > bits_.size()) {
            const std::size_t start = bits_.size();
            bits_.resize(start + words_, ~0ULL);
            for (int x = 0; x < width_; ++x) bits_[start + (x + kMargin) / 64] ^= 1ULL << ((x + kMargin) % 64);
        }
    }

    int width_, words_, ceiling_ = -1;
    std::vector<std::uint64_t> bits_;
};

// The lowest free place of a piece by its exact cells, leftmost first; rows below `from_row` are known to be full.
Spot lowest_spot(Grid& grid, const Piece& piece, int from_row) {
    for (int y = from_row;; ++y) {
        Spot best;
        int best_top = 0;
        for (std::size_t v = 0; v < piece.variants.size(); ++v) {
            const Variant& variant = piece.variants[v];
            if (best.variant >= 0 && y + variant.height >= best_top) continue;
            for (int x = 0; x + variant.width <= grid.width(); x += 64) {
                const std::uint64_t starts = grid.free_starts(variant, x, y);
                if (starts == 0) continue;
                best = {static_cast<int>(v), x + __builtin_ctzll(starts), y};
                best_top = y + variant.height;
                break;
            }
        }
        if (best.variant >= 0) return best;
    }
}

//@endif
