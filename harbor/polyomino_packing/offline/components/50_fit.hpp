//@if scored
// ---- how good a place is -------------------------------------------------------------------------------------------

//@if fit=lowest
// The lower the piece's upper edge, the better.
double worth(Grid&, const Variant& variant, int, int y) {
    return -2.0 * (y + variant.height);
}
//@endif
//@if fit=touch
// Low places are good, and a little better the more of the piece's outline touches what lies there already.
double worth(Grid& grid, const Variant& variant, int x, int y) {
    return 0.3 * grid.contact(variant, x, y) - 1.5 * (y + variant.height);
}
//@endif
//@if fit=contact
// The more of the piece's outline touches what lies there already, the better.
double worth(Grid& grid, const Variant& variant, int x, int y) {
    return grid.contact(variant, x, y) - 1.5 * y;
}
//@endif
//@if fit=pockets
// Low places are good, places that shut in free cells are bad.
double worth(Grid& grid, const Variant& variant, int x, int y) {
    return -1.0 * (y + variant.height) - 2.0 * grid.pockets(variant, x, y);
}
//@endif

//@endif
