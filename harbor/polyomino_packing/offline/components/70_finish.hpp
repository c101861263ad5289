//@if settle=on
// ---- gravity -------------------------------------------------------------------------------------------------------

// Drops the pieces again, lowest first: each falls from above and slides left, by its exact cells, until it is stuck.
Packing settled(const std::vector<Piece>& pieces, const Packing& loose) {
    std::vector<int> order;
    for (std::size_t id = 0; id < pieces.size(); ++id) {
        if (loose.spots[id].variant >= 0) order.push_back(static_cast<int>(id));
    }
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
        const Spot &left = loose.spots[a], &right = loose.spots[b];
        return left.y != right.y ? left.y < right.y : left.x < right.x;
    });
    Packing packing = loose;
    packing.height = 0;
    int right_edge = 0;
    Grid grid(static_cast<int>(loose.width));
    for (int id : order) {
        const Variant& variant = pieces[id].variants[loose.spots[id].variant];
        int x = std::min(loose.spots[id].x, right_edge), y = static_cast<int>(packing.height);
        for (bool moved = true; moved;) {
            moved = false;
            budget.spend(20);
            while (grid.fits(variant, x, y - 1)) --y, moved = true;
            while (grid.fits(variant, x - 1, y)) --x, moved = true;
        }
        grid.put(variant, x, y);
        packing.spots[id] = {loose.spots[id].variant, x, y};
        packing.height = std::max<long long>(packing.height, y + variant.height);
        right_edge = std::max(right_edge, x + variant.width);
    }
    packing.width = right_edge;
    return packing.area() < loose.area() ? packing : loose;
}

//@endif
//@if fill=holes
// ---- hole filling --------------------------------------------------------------------------------------------------

// Splits off the smallest pieces (about one in eight); they are kept back for the holes that the others leave.
// No more than 500, because each of them may look through every row.
std::vector<int> keep_back_small(const std::vector<Piece>& pieces, std::vector<int>& order) {
    std::vector<int> by_size = order;
    std::stable_sort(by_size.begin(), by_size.end(), [&](int a, int b) { return pieces[a].size > pieces[b].size; });
    const std::size_t kept = std::min<std::size_t>(order.size() / 8, 500);
    const std::vector<int> small(by_size.end() - static_cast<std::ptrdiff_t>(kept), by_size.end());
    std::vector<bool> is_small(pieces.size(), false);
    for (int id : small) is_small[id] = true;
    const auto gone = [&](int id) { return is_small[id]; };
    order.erase(std::remove_if(order.begin(), order.end(), gone), order.end());
    return small;
}

// Puts the kept pieces into the lowest holes that hold their exact cells, the larger ones first.
void fill_holes(const std::vector<Piece>& pieces, const std::vector<int>& small, Packing& packing) {
    Grid grid(static_cast<int>(packing.width));
    for (std::size_t id = 0; id < pieces.size(); ++id) {
        const Spot& spot = packing.spots[id];
        if (spot.variant >= 0) grid.put(pieces[id].variants[spot.variant], spot.x, spot.y);
    }
    int from_row = 0;
    for (int id : small) {
        while (grid.full_row(from_row)) ++from_row;
        const Spot spot = lowest_spot(grid, pieces[id], from_row);
        const Variant& variant = pieces[id].variants[spot.variant];
        grid.put(variant, spot.x, spot.y);
        packing.spots[id] = spot;
        packing.height = std::max<long long>(packing.height, spot.y + variant.height);
    }
}

//@endif
// ---- one packing, from an order and a width ------------------------------------------------------------------------

Packing construct(const std::vector<Piece>& pieces, std::vector<int> order, int width) {
    budget.begin_lap();
    //@if fill=holes
    const std::vector<int> small = keep_back_small(pieces, order);
    //@endif
    Packing packing = place(pieces, order, width);
    //@if settle=on
    packing = settled(pieces, packing);
    //@endif
    //@if fill=holes
    fill_holes(pieces, small, packing);
    //@endif
    budget.end_lap();
    return packing;
}

// ---- width ---------------------------------------------------------------------------------------------------------

// The narrowest strip that every piece fits into.
int least_width(const std::vector<Piece>& pieces) {
    int least = 1;
    for (const Piece& piece : pieces) {
        for (const Variant& variant : piece.variants) least = std::max(least, variant.width);
    }
    return least;
}

//@if width=square
// A strip as wide as a square of all cells.
const std::vector<double> kWidthFactors = {1.0};
//@endif
//@if width=narrow
// A narrow, high strip: a short upper edge, where the raggedness is, but long side walls.
const std::vector<double> kWidthFactors = {0.6};
//@endif
//@if width=wide
// A wide, low strip.
const std::vector<double> kWidthFactors = {1.6};
//@endif
//@if width=few
// The square's strip and two narrower ones.
const std::vector<double> kWidthFactors = {1.0, 0.9, 0.8};
//@endif
//@if width=several
// Some strips around the square.
const std::vector<double> kWidthFactors = {1.0, 0.6, 0.8, 1.2, 0.7, 0.9, 1.1, 0.65};
//@endif
//@if width=search
// Many strips around the square, coarse steps first, so that running out of time does little harm.
const std::vector<double> kWidthFactors = {1.0, 0.6, 0.8, 1.2, 0.7, 0.9, 1.1, 0.5, 1.4, 0.65, 0.75, 0.85,
                                           0.95, 1.05, 1.15, 1.3, 0.55, 0.625, 0.675, 0.725, 0.775, 0.825};
//@endif

Packing best_over_widths(const std::vector<Piece>& pieces, const std::vector<int>& order, double share) {
    long long cells = 0;
    for (const Piece& piece : pieces) cells += piece.size;
    const int least = least_width(pieces);
    Packing best;
    std::vector<int> tried;
    for (double factor : kWidthFactors) {
        const int width = std::max(least, static_cast<int>(std::ceil(factor * std::sqrt(static_cast<double>(cells)))));
        if (std::find(tried.begin(), tried.end(), width) != tried.end()) continue;
        tried.push_back(width);
        if (best.complete() && !budget.another_lap(share)) break;
        Packing packing = construct(pieces, order, width);
        if (!best.complete() || packing.area() < best.area()) best = std::move(packing);
    }
    return best;
}

