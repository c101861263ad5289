// ---- orientation ---------------------------------------------------------------------------------------------------

// The variants this program may use, without duplicates.
std::vector<Variant> usable_variants(const std::vector<Cell>& shape) {
    std::vector<Variant> usable;
    //@if mirror=on
    const std::array<bool, 2> reflections = {false, true};
    //@endif
    //@if mirror=off
    const std::array<bool, 1> reflections = {false};
    //@endif
    //@if turns=keep
    const int last_turn = 0, turn_step = 1;
    //@endif
    //@if turns=half
    const int last_turn = 2, turn_step = 2;
    //@endif
    //@if turns=flat,upright,four
    const int last_turn = 3, turn_step = 1;
    //@endif
    for (bool mirrored : reflections) {
        for (int turns = 0; turns <= last_turn; turns += turn_step) {
            const Variant variant = turned(shape, mirrored, turns);
            const bool known = std::any_of(usable.begin(), usable.end(), [&](const Variant& other) {
                return other.width == variant.width && other.rows == variant.rows;
            });
            if (!known) usable.push_back(variant);
        }
    }
    //@if turns=flat,upright
    // Flat: the lowest boxes only.  Upright: the highest only.
    const auto lower = [](const Variant& a, const Variant& b) { return a.height < b.height; };
    //@endif
    //@if turns=flat
    const int wanted = std::min_element(usable.begin(), usable.end(), lower)->height;
    //@endif
    //@if turns=upright
    const int wanted = std::max_element(usable.begin(), usable.end(), lower)->height;
    //@endif
    //@if turns=flat,upright
    const auto other = [&](const Variant& variant) { return variant.height != wanted; };
    usable.erase(std::remove_if(usable.begin(), usable.end(), other), usable.end());
    //@endif
    return usable;
}

