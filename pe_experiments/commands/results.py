"""Make every table, figure and page under results/ from the CSVs of the studies; `make results` does it.

python scripts/results.py                      everything, and the numbers in README.md
python scripts/results.py check=true           write nothing; name what would come out otherwise
python scripts/results.py publish=core         after train.py sweep=core: its CSVs anew, from the runs
"""

from pathlib import Path

from pe_experiments.command_line import command
from pe_experiments.composition import composed
from pe_experiments.console import say
from pe_experiments.files import CONFIG_DIR


def main(arguments: list[str]) -> int:
    asked = composed("results", arguments)
    from pe_experiments.errors import UserError, shown
    from pe_experiments.files import write_atomically
    from pe_experiments.publishing import publish

    for key in ("results_dir", "publish"):
        if not isinstance(asked[key], str) and not (key == "publish" and asked[key] is None):
            raise UserError(f"{key}={shown(asked[key])}: expected text")
    if not isinstance(asked.check, bool) or (asked.check and asked.publish is not None):
        raise UserError(f"check={shown(asked.check)}: allowed: true, without publish, or false")
    results_dir, readme = Path(asked.results_dir), CONFIG_DIR.parent / "README.md"
    if asked.publish is not None:
        publish.publish(asked.publish, results_dir)
    drifted: list[Path] = []
    for folder in [] if asked.publish else publish.published(results_dir):
        say(f"{folder}: from its CSVs")
        if asked.check:
            drifted += publish.differences(folder)
        else:
            publish.regenerate(folder)
    if results_dir.resolve() == readme.parent / "results":
        text = publish.project_readme(readme.read_text(), results_dir)
        if not asked.check:
            write_atomically(readme, text)
        elif text != readme.read_text():
            drifted.append(readme)
    for path in drifted:
        say(f"not what the CSVs say: {path}")
    return 1 if drifted else 0


run = command("results", __doc__, main)

if __name__ == "__main__":
    run()
