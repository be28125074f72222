"""Train one configuration on short sequences and measure it on long ones; -m or sweep=NAME for many.

python scripts/train.py                                       sinusoidal, copy, decoder
python scripts/train.py pe=learned positions=random_offset task=unique_copy seed=1
python scripts/train.py -m pe=none,sinusoidal seed=0,1,2      every combination
python scripts/train.py sweep=first_look                      a prepared sweep, with its comparison
python scripts/train.py --config-dir DIR pe=mine              with a file DIR/pe/mine.yaml of your own
"""

from pathlib import Path

from pe_experiments.commands.command_line import command, flags_apart, show_result
from pe_experiments.configuration.compose import ConfigMapping, common_to_runs, composed
from pe_experiments.configuration.schema import check
from pe_experiments.sweeps.sweep import Sweep, list_studies
from pe_experiments.terminal.console import Lines, say


def main(arguments: list[str]) -> int:
    texts, many, folder = flags_apart(arguments)
    common, hydra = common_to_runs(texts, folder)
    if many or hydra["mode"] == "MULTIRUN":
        return sweep(texts, common, hydra["sweeper"]["params"], folder)
    checked = check(composed("config", texts, folder))  # before torch is imported
    from pe_experiments.configuration.experiment import resolve
    from pe_experiments.run import run_experiment, try_out
    from pe_experiments.store.plan import plan

    experiment = resolve(checked)
    if checked.dry_run:
        try_out(experiment)
        planned = plan(experiment)
        lengths = ", ".join(map(str, experiment.evaluation_lengths))
        why = f" ({planned.remark})" if planned.remark else ""
        say(f"{planned.state}: {planned.run.path}{why}\nevaluated at {lengths}")
        return 0
    result = run_experiment(experiment, Lines())
    show_result(result)
    return 0 if result.status == "completed" else 1


def sweep(texts: list[str], common: ConfigMapping, varied: ConfigMapping | None, folder: Path | None) -> int:
    """Carry out many runs; then compare those of each study, or show the verdicts against a bank."""
    if common["sweep"]["against"]:
        from pe_experiments.published.report import report
        from pe_experiments.published.versus import Versus

        return Versus(report, texts, common, varied, folder).carry_out()[0]
    code, jobs = Sweep(texts, common, varied, folder).carry_out()
    for results_dir, study in list_studies(jobs):
        from pe_experiments.comparison.compare import compare, show

        show(compare(results_dir, study, Path(results_dir) / study))
    return code


run = command("train", __doc__, main)
