"""Configurations, programs and the way between them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_executors_catalogue import BASE, write

from executors.answer import Composer
from executors.assemble import assemble, effective, read_configuration
from executors.catalogue import Catalogue, CatalogueError


@pytest.mark.parametrize(
    ("main", "words"),
    [
        ("//@if colour=red\n", "1 //@if without //@endif"),
        ("x\n//@endif\n", "main.hpp:2: //@endif without //@if"),
        ("//@if smell=bad\n//@endif\n", "main.hpp:1: 'smell' is neither"),
        ("//@if paper\n//@endif\n", "main.hpp:1: 'paper' is neither"),
        ("//@else\n", "'//@else' is not a marker"),
    ],
)
def test_a_component_with_broken_markers_is_named_with_its_line(tmp_path: Path, main: str, words: str) -> None:
    toy = Catalogue.load(write(tmp_path / "toy", BASE, main=main))
    with pytest.raises(CatalogueError) as caught:
        assemble(toy, toy.defaults)
    assert words in str(caught.value)


def test_markers_select_nested_parts_by_values_and_features(tmp_path: Path) -> None:
    inner = "  //@if size=big ink\n  c\n  //@endif\n"
    main = f"a\n//@if colour=blue\nb\n{inner}//@endif\n//@if colour=red,blue\nd\n//@endif\n"
    toy = Catalogue.load(write(tmp_path / "toy", BASE, main=main))

    def body(**changes: str) -> list[str]:
        text = assemble(toy, {**toy.defaults, **changes}).split("toy-config end\n")[1]
        return [line.strip() for line in text.splitlines() if line.strip()]

    assert body() == ["a", "d"]
    assert body(colour="blue") == ["a", "b", "d"]
    assert body(colour="blue", size="big") == ["a", "b", "c", "d"]


def test_a_dormant_setting_builds_the_default_but_stays_written_down(tmp_path: Path) -> None:
    toy = Catalogue.load(write(tmp_path / "toy", BASE, main="//@if size=big\nbig\n//@endif\n"))
    wanted = {**toy.defaults, "size": "big"}
    built, asleep = effective(toy, wanted)
    assert built == toy.defaults
    assert [(item.key, item.value) for item in asleep] == [("size", "big")]
    program = assemble(toy, wanted)
    assert "big\n" not in program.split("toy-config end")[1]
    assert read_configuration(toy, program).configuration == wanted


def test_a_program_without_a_block_has_the_default_configuration(catalogue: Catalogue, seed_program: str) -> None:
    read = read_configuration(catalogue, seed_program)
    assert (read.configuration, read.has_block) == (catalogue.defaults, False)


def test_unknown_lines_of_a_block_are_reported_and_ignored(catalogue: Catalogue) -> None:
    text = "// packing-config begin\n// place = moon\n// place = shelf\n// x = y\n// nonsense\n// packing-config end\n"
    read = read_configuration(catalogue, text)
    assert read.configuration == {**catalogue.defaults, "place": "shelf"}
    assert read.ignored == ("place = moon", "x = y", "nonsense")


def test_an_unfinished_block_counts_as_none(catalogue: Catalogue) -> None:
    assert not read_configuration(catalogue, "// packing-config begin\n// place = shelf\nint main() {}\n").has_block


def test_line_ends_do_not_matter(catalogue: Catalogue) -> None:
    program = assemble(catalogue, {**catalogue.defaults, "place": "gaps"})
    assert read_configuration(catalogue, program.replace("\n", "\r\n")).configuration["place"] == "gaps"


@given(st.data())
def test_every_configuration_survives_being_a_program(catalogue: Catalogue, data: st.DataObject) -> None:
    wanted = {key: data.draw(st.sampled_from(sorted(s.values))) for key, s in catalogue.settings.items()}
    program = assemble(catalogue, wanted)
    assert read_configuration(catalogue, program).configuration == wanted
    assert assemble(catalogue, wanted) == program
    assert "@if" not in program
    assert program.count("int main()") == 1


@given(st.data())
def test_from_any_program_a_mechanism_is_built_in_steps_that_change_one_setting_each(
    catalogue: Catalogue, data: st.DataObject
) -> None:
    mechanism = data.draw(st.sampled_from(catalogue.data.mechanisms))
    now = {key: data.draw(st.sampled_from(sorted(setting.values))) for key, setting in catalogue.settings.items()}
    for _ in range(20):
        after = catalogue.step(mechanism, now)
        changed = [key for key in now if after[key] != now[key]]
        if not changed:
            break
        assert len(changed) == 1
        assert changed[0] in {**mechanism.needs, **mechanism.sets}
        now = after
    assert not changed
    assert mechanism.sets.items() <= now.items()
    assert all(catalogue.settings[key].reaches(now[key], least) for key, least in mechanism.needs.items())


def test_vague_guidance_returns_the_parent_byte_for_byte(composer: Composer, seed_program: str) -> None:
    answer = composer.compose(seed_program, "Improve the packing with a better idea.")
    assert (answer.program, answer.changed) == (seed_program, False)
    assert "named no mechanism" in answer.summary


def test_a_mechanism_that_the_parent_has_already_changes_nothing(composer: Composer, seed_program: str) -> None:
    shelf = composer.compose(seed_program, "Use shelf packing.").program
    again = composer.compose(shelf, "Use shelf packing.")
    assert (again.program, again.changed) == (shelf, False)
    assert "already had shelf packing" in again.summary


def test_hops_add_up_and_say_what_changed(composer: Composer, seed_program: str) -> None:
    first = composer.compose(seed_program, "Use hole filling.")
    assert "without effect" in first.summary
    second = composer.compose(first.program, "Use shelf packing and tallest first.")
    read = read_configuration(composer.catalogue, second.program).configuration
    assert (read["place"], read["fill"], read["order"]) == ("shelf", "holes", "height")
    assert second.summary.startswith("Bounding boxes stand on shelves")
    assert "Small pieces are kept back for the holes." in second.summary
    assert "Changed: it now stacks bounding boxes in shelves within a strip; it now takes taller" in second.summary
    assert "without effect" not in second.summary


def test_each_request_goes_one_step_of_the_way_until_none_is_left(composer: Composer, seed_program: str) -> None:
    program, way = seed_program, []
    for _ in range(8):
        answer = composer.compose(program, "Use width search.")
        program = answer.program
        read = read_configuration(composer.catalogue, program).configuration
        way.append((read["place"], read["width"]))
        finished = way[-1] == ("gaps", "search")
        assert ("goes a step towards width search (" in answer.summary) != finished, answer.summary
        assert ("tries many strip widths" in answer.summary) == (finished and answer.changed)
        assert "without effect" not in answer.summary
    placed = [(place, "square") for place in ("shelf", "skyline", "cells", "gaps")]
    assert way == [*placed, ("gaps", "few"), ("gaps", "several"), ("gaps", "search"), ("gaps", "search")]
    assert not answer.changed


def test_what_stands_above_the_need_on_its_ladder_is_kept(composer: Composer, seed_program: str) -> None:
    program = seed_program
    for _ in range(4):
        program = composer.compose(program, "Use gap filling.").program
    answer = composer.compose(program, "Use contact scoring.")
    read = read_configuration(composer.catalogue, answer.program).configuration
    assert (read["place"], read["fit"]) == ("gaps", "touch")
    assert "step towards contact scoring (low places that touch much win)" in answer.summary


def test_what_is_named_itself_is_built_even_where_more_was_there(composer: Composer, seed_program: str) -> None:
    program = composer.compose(seed_program, "Use skyline placement.").program
    program = composer.compose(program, "Use skyline placement.").program
    back = composer.compose(program, "Use shelf packing.")
    assert read_configuration(composer.catalogue, back.program).configuration["place"] == "shelf"


def test_a_refused_mechanism_is_admitted_in_the_summary(composer: Composer, seed_program: str) -> None:
    summary = composer.compose(seed_program, "Use gap filling and gravity.").summary
    assert "Left out: gravity, which does not go together with gap filling." in summary


def test_summaries_hold_no_line_of_the_program(composer: Composer, seed_program: str) -> None:
    program = seed_program
    for mechanism in composer.catalogue.data.mechanisms:
        answer = composer.compose(program, f"Use {mechanism.name}.")
        lines = {line.strip() for line in answer.program.splitlines() if len(line.strip()) > 12}
        assert not any(line in answer.summary for line in lines)
        assert "`" not in answer.summary
        program = answer.program


def test_the_fence_is_longer_than_any_in_the_program(composer: Composer) -> None:
    parent = 'const char* text = R"(\n````\n)";\nint main() {}\n'
    text = composer.compose(parent, "vague").text()
    assert "\n`````cpp\n" in text
    assert text.endswith("</summary>")
