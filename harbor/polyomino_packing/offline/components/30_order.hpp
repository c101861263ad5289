// ---- order ---------------------------------------------------------------------------------------------------------

//@if order=input
std::vector<int> packing_order(const std::vector<Piece>& pieces) {
    std::vector<int> order(pieces.size());
    std::iota(order.begin(), order.end(), 0);
    return order;
}
//@endif
//@if order=area,height,width,ragged,small
// A piece with a larger key is packed earlier.
double packing_key(const Piece& piece) {
    const Variant& variant = piece.variants.front();
    //@if order=area
    return piece.size + 0.001 * variant.width * variant.height;
    //@endif
    //@if order=height
    return variant.height + 0.01 * piece.size;
    //@endif
    //@if order=width
    return variant.width + 0.01 * piece.size;
    //@endif
    //@if order=ragged
    // Edges on the outline: the more, the harder it is to find a place for the piece later.
    int outline = 4 * variant.count;
    for (int i = 0; i < variant.count; ++i) {
        for (int j = 0; j < i; ++j) {
            const int dx = std::abs(variant.cells[i].x - variant.cells[j].x);
            const int dy = std::abs(variant.cells[i].y - variant.cells[j].y);
            if (dx + dy == 1) outline -= 2;
        }
    }
    return outline + 0.01 * variant.width * variant.height;
    //@endif
    //@if order=small
    return -(piece.size + 0.001 * variant.width * variant.height);
    //@endif
}

std::vector<int> packing_order(const std::vector<Piece>& pieces) {
    std::vector<int> order(pieces.size());
    std::iota(order.begin(), order.end(), 0);
    std::vector<double> key;
    for (const Piece& piece : pieces) key.push_back(packing_key(piece));
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return key[a] > key[b]; });
    return order;
}
//@endif

