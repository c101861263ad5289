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
    first = composer.compose(seed_program, "Use contact scoring.")
    assert "without effect" in first.summary
    second = composer.compose(first.program, "Use gap filling and best-fit choice.")
    read = read_configuration(composer.catalogue, second.program).configuration
    assert (read["place"], read["fit"], read["pick"]) == ("gaps", "contact", "any")
    assert second.summary.startswith("Each lowest free cell is covered")
    assert "Most touching edges win." in second.summary
    assert "covers the lowest free cell" in second.summary
    assert "without effect" not in second.summary


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
