// ---- placement -----------------------------------------------------------------------------------------------------

//@if place=row,shelf
// A bounding-box placement has no use for more than one variant of a piece: it takes the lowest.
int lowest_variant(const Piece& piece) {
    int best = 0;
    for (std::size_t v = 1; v < piece.variants.size(); ++v) {
        if (piece.variants[v].height < piece.variants[best].height) best = static_cast<int>(v);
    }
    return best;
}

//@endif
//@if place=row
// All bounding boxes side by side on the floor.
Packing place(const std::vector<Piece>& pieces, const std::vector<int>& order, int) {
    Packing packing;
    packing.spots.resize(pieces.size());
    for (int id : order) {
        const int v = lowest_variant(pieces[id]);
        packing.spots[id] = {v, static_cast<int>(packing.width), 0};
        packing.width += pieces[id].variants[v].width;
        packing.height = std::max<long long>(packing.height, pieces[id].variants[v].height);
    }
    return packing;
}
//@endif
//@if place=shelf
// Bounding boxes side by side on a shelf; a box that does not fit any more opens the next shelf above.
Packing place(const std::vector<Piece>& pieces, const std::vector<int>& order, int width) {
    Packing packing;
    packing.width = width;
    packing.spots.resize(pieces.size());
    int floor = 0, top = 0, x = 0;
    budget.spend(static_cast<long long>(order.size()));
    for (int id : order) {
        const int v = lowest_variant(pieces[id]);
        const Variant& variant = pieces[id].variants[v];
        if (x + variant.width > width) {
            floor = top;
            x = 0;
        }
        packing.spots[id] = {v, x, floor};
        x += variant.width;
        top = std::max(top, floor + variant.height);
    }
    packing.height = top;
    return packing;
}
//@endif
//@if place=skyline
// Bounding boxes on the skyline: each goes where its upper edge stays lowest.
Packing place(const std::vector<Piece>& pieces, const std::vector<int>& order, int width) {
    Packing packing;
    packing.width = width;
    packing.spots.resize(pieces.size());
    std::vector<int> skyline(width, 0);
    for (int id : order) {
        Spot best;
        int best_top = 0;
        for (std::size_t v = 0; v < pieces[id].variants.size(); ++v) {
            const Variant& variant = pieces[id].variants[v];
            budget.spend(width / 3);
            for (int x = 0; x + variant.width <= width; ++x) {
                const int y = *std::max_element(skyline.begin() + x, skyline.begin() + x + variant.width);
                if (best.variant >= 0 && y + variant.height >= best_top) continue;
                best = {static_cast<int>(v), x, y};
                best_top = y + variant.height;
            }
        }
        const int box_width = pieces[id].variants[best.variant].width;
        std::fill(skyline.begin() + best.x, skyline.begin() + best.x + box_width, best_top);
        packing.spots[id] = best;
        packing.height = std::max<long long>(packing.height, best_top);
    }
    return packing;
}
//@endif
//@if place=cells
// Exact cells instead of boxes: each piece in turn takes the best place in the lowest rows that can hold it.
Packing place(const std::vector<Piece>& pieces, const std::vector<int>& order, int width) {
    Packing packing;
    packing.width = width;
    packing.spots.resize(pieces.size());
    Grid grid(width);
    // How far to look: rows above the lowest possible one, and rows below the upper edge; less on large instances.
    const int count = static_cast<int>(pieces.size());
    const int reach = std::min(4, 1 + 6000 / count), depth = std::min(48, 16 + 40000 / count);
    for (int id : order) {
        const Piece& piece = pieces[id];
        Spot best;
        double best_worth = 0;
        int last_row = -1;
        for (int y = std::max(0, static_cast<int>(packing.height) - depth); last_row < 0 || y <= last_row; ++y) {
            if (grid.full_row(y)) continue;
            for (std::size_t v = 0; v < piece.variants.size(); ++v) {
                for (int x = 0; x < width; x += 64) {
                    const std::uint64_t starts = grid.free_starts(piece.variants[v], x, y);
                    // Only where the piece meets something on its left or on its right.
                    std::uint64_t ends = starts & ~((starts << 1) & (starts >> 1));
                    for (; ends != 0; ends &= ends - 1) {
                        const int start = x + __builtin_ctzll(ends);
                        const double value = worth(grid, piece.variants[v], start, y);
                        budget.spend(4);
                        if (best.variant >= 0 && value <= best_worth) continue;
                        best = {static_cast<int>(v), start, y};
                        best_worth = value;
                    }
                }
            }
            if (last_row < 0 && best.variant >= 0) last_row = y + reach;
        }
        const Variant& chosen = piece.variants[best.variant];
        grid.put(chosen, best.x, best.y);
        packing.spots[id] = best;
        packing.height = std::max<long long>(packing.height, best.y + chosen.height);
    }
    return packing;
}
//@endif
//@if place=gaps
// Gap by gap: the lowest, leftmost free cell is covered by a piece that fits there, or given up when none does.
Packing place(const std::vector<Piece>& pieces, const std::vector<int>& order, int width) {
    Packing packing;
    packing.width = width;
    packing.spots.resize(pieces.size());
    Grid grid(width), closed(width);  // closed: occupied or given up
    std::vector<int> waiting = order;
    //@if pick=next
    const std::size_t choice = 1;  // the first piece in order that fits
    //@endif
    //@if pick=window
    const std::size_t choice = 12;  // the best of the first few pieces that fit
    //@endif
    //@if pick=many
    const std::size_t choice = 60;  // the best of many pieces that fit
    //@endif
    //@if pick=any
    const std::size_t choice = pieces.size();  // the best of all pieces
    //@endif
    // On large instances a look at the first few hundred pieces has to do.
    const std::size_t reach = std::max<std::size_t>(100, 1000000 / (pieces.size() + 1));
    const double patience = 1.0 / static_cast<double>(pieces.size());  // a slight preference for the given order
    for (int y = 0; !waiting.empty(); ++y) {
        for (int x = 0; x < width && !waiting.empty(); ++x) {
            if (closed.occupied(x, y)) continue;
            Spot best;
            double best_worth = 0;
            std::size_t best_index = 0, fitting = 0;
            for (std::size_t i = 0; i < std::min(reach, waiting.size()) && fitting < choice; ++i) {
                const Piece& piece = pieces[waiting[i]];
                bool fits = false;
                for (std::size_t v = 0; v < piece.variants.size(); ++v) {
                    const Variant& variant = piece.variants[v];
                    budget.spend(2);
                    if (!grid.fits(variant, x - variant.foot, y)) continue;
                    fits = true;
                    const double value = worth(grid, variant, x - variant.foot, y) - patience * static_cast<double>(i);
                    budget.spend(5);
                    if (best.variant >= 0 && value <= best_worth) continue;
                    best = {static_cast<int>(v), x - variant.foot, y};
                    best_worth = value;
                    best_index = i;
                }
                fitting += fits ? 1 : 0;
            }
            if (best.variant < 0) {
                closed.flip(x, y);
                continue;
            }
            const int id = waiting[best_index];
            const Variant& chosen = pieces[id].variants[best.variant];
            grid.put(chosen, best.x, best.y);
            closed.put(chosen, best.x, best.y);
            packing.spots[id] = best;
            packing.height = std::max<long long>(packing.height, y + chosen.height);
            waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(best_index));
        }
    }
    return packing;
}
//@endif

