// ---- input and output ----------------------------------------------------------------------------------------------

std::vector<Piece> read_pieces() {
    int piece_count = 0;
    if (std::scanf("%d", &piece_count) != 1) return {};
    std::vector<Piece> pieces(piece_count);
    for (Piece& piece : pieces) {
        if (std::scanf("%d", &piece.size) != 1) return {};
        std::vector<Cell> shape(piece.size);
        for (Cell& cell : shape) {
            if (std::scanf("%d %d", &cell.x, &cell.y) != 2) return {};
        }
        piece.variants = usable_variants(shape);
    }
    return pieces;
}

void write_packing(const std::vector<Piece>& pieces, const Packing& packing) {
    std::printf("%lld %lld\n", packing.width, packing.height);
    for (std::size_t id = 0; id < pieces.size(); ++id) {
        const Spot& spot = packing.spots[id];
        const Variant& variant = pieces[id].variants[spot.variant];
        const int shift_x = spot.x + variant.shift_x, shift_y = spot.y + variant.shift_y;
        std::printf("%d %d %d %d\n", shift_x, shift_y, variant.turns, variant.mirrored ? 1 : 0);
    }
}

int main() {
    const std::vector<Piece> pieces = read_pieces();
    if (pieces.empty()) return 1;
    const std::vector<int> order = packing_order(pieces);
    //@if improve=off
    const Packing best = best_over_widths(pieces, order, 1.0);
    //@endif
    //@if improved
    // Widths may use half of the time; the improvement gets the rest.
    const Packing best = improved(pieces, order, best_over_widths(pieces, order, 0.5));
    //@endif
    write_packing(pieces, best);
    return 0;
}
