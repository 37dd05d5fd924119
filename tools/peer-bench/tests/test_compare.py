"""Tests the verdicts of `compare`, and its behaviour when a program fails. Needs neither MPI nor Peerweave."""

import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(HERE.parent))
from peerbench import cases, machine, programs, report  # noqa: E402
from peerbench.programs import Sample  # noqa: E402


def row(case, **times):
    made = report.Row(case)
    for program, figures in times.items():
        made.samples[program.replace("_", "-")] = [Sample(us) for us in figures]
    return made


class Conclusions(unittest.TestCase):
    case = cases.Case("all-reduce", 1024, goal=0.5)

    def test_ratio_divides_medians_of_peerweave_and_faster_peer(self):
        got = row(self.case, peerweave=[4, 5, 90], openmpi=[10, 11, 12], openshmem=[20, 20, 1])
        self.assertAlmostEqual(got.ratio(report.DEFAULT_PEERS), 5 / 11)
        self.assertEqual(got.verdict(report.DEFAULT_PEERS), "met")
        self.assertEqual([round(r, 2) for r in got.round_ratios(report.DEFAULT_PEERS)], [0.4, 0.45, 90])

    def test_tuned_peer_affects_only_the_verdict_of_all_settings(self):
        got = row(self.case, peerweave=[4], openmpi=[10], openmpi_sm=[5], openmpi_nocma=[7])
        self.assertEqual(got.verdict(report.DEFAULT_PEERS), "met")
        self.assertEqual(got.verdict(report.ALL_PEERS), "not met")
        self.assertIn("| 10.00 | 5.00 (sm) |", report.table([got], 0.1))

    def test_goal_is_not_met_if_peerweave_has_wrong_values(self):
        got = row(self.case, peerweave=[1], openmpi=[10])
        got.samples["peerweave"][0].wrong = 3
        self.assertEqual(got.verdict(report.ALL_PEERS), "wrong values")
        self.assertIn("3 wrong", report.table([got], 0.1))

    def test_peer_with_wrong_values_is_not_compared(self):
        got = row(self.case, peerweave=[6], openmpi=[10], openshmem=[1])
        got.samples["openshmem"][0].wrong = 1
        self.assertAlmostEqual(got.ratio(report.DEFAULT_PEERS), 0.6)

    def test_goal_is_not_measured_without_peers_or_without_peerweave(self):
        self.assertEqual(row(self.case, peerweave=[1]).verdict(report.ALL_PEERS), "not measured")
        self.assertEqual(row(self.case, openmpi=[1]).verdict(report.ALL_PEERS), "not measured")

    def test_absolute_goal_needs_no_peer(self):
        case = cases.Case("init", 0, pes=8, goal_ms=30.0)
        self.assertEqual(row(case, peerweave=[29_000]).verdict(report.ALL_PEERS), "met")
        self.assertEqual(row(case, peerweave=[31_000]).verdict(report.ALL_PEERS), "not met")

    def test_unchecked_and_disturbed_figures_are_marked(self):
        got = row(self.case, peerweave=[1], openmpi=[10])
        got.samples["peerweave"][0].wrong = None
        got.samples["openmpi"][0].foreign_cpus = 0.7
        self.assertIn("1.00 (unchecked)", report.table([got], 0.1))
        self.assertIn("(disturbed, 0.70)", report.table([got], 0.1))


class Cases(unittest.TestCase):
    def test_size_of_each_case_is_a_whole_number_of_elements_per_pe(self):
        for case in cases.CASES:
            divided = case.op in ("reduce-scatter", "all-gather", "all-gather-v", "all-to-all", "all-to-all-v")
            self.assertEqual(case.size % (4 * case.pes if divided else 4), 0, case.name)

    def test_cases_without_input_are_not_dirty(self):
        for case in cases.CASES:
            if case.op in ("barrier", "p", "fetch-add", "ping-pong", "init"):
                self.assertFalse(case.dirty, case.name)

    def test_groups_contain_every_case_once_and_in_order(self):
        joined = [case for group in cases.groups(cases.CASES) for case in group.cases]
        self.assertEqual(joined, cases.CASES)

    def test_unknown_operation_is_named(self):
        with self.assertRaisesRegex(ValueError, "unknown all-reduse"):
            cases.select(["all-reduse"], [])


class PeerweaveAdapter(unittest.TestCase):
    group = cases.Group("all-reduce", 2, True, (cases.Case("all-reduce", 8),))

    def result(self, size=8, debug=False, **placement):
        document = {
            "results": [{"size": size, "out_of_place": placement, "out_of_place_per_batch": {"times_us": [1.0, 2.0], "iterations": 7}}],
            "peerweave": {"debug_assertions": debug},
        }
        return programs.peerweave_result(document, self.group, 8)

    def test_command_has_equal_minimum_and_maximum_size(self):
        argv = programs.peerweave_command("peerweave", self.group, 8, 5, "out.json")
        self.assertEqual(
            argv, "peerweave bench all-reduce -n 2 -d float -o sum -b 8 -e 8 -f 2 --dirty --batches 5 --batch-ms 30 --json out.json".split()
        )

    def test_sample_has_the_batches_and_calls_of_the_json(self):
        self.assertEqual(self.result(time=1.5, nwrong=0), Sample(1.5, [1.0, 2.0], 7, 0))

    def test_result_of_another_size_is_refused(self):
        with self.assertRaisesRegex(programs.ProgramError, "expected one result for size 8, got 0"):
            self.result(size=16, time=1.0, nwrong=0)

    def test_unchecked_result_has_no_count_of_wrong_elements(self):
        for wrong in (-1, "N/A", None):
            self.assertIsNone(self.result(time=1.0, nwrong=wrong).wrong)

    def test_result_without_a_time_is_refused(self):
        with self.assertRaisesRegex(programs.ProgramError, "expected microseconds"):
            self.result(nwrong=0)

    def test_debug_build_is_refused(self):
        with self.assertRaisesRegex(programs.ProgramError, "build it with --release"):
            self.result(debug=True, time=1.0, nwrong=0)


class Processes(unittest.TestCase):
    def test_hanging_command_is_killed_with_its_children(self):
        with tempfile.TemporaryDirectory() as folder:
            mark = Path(folder) / "alive"
            script = f"(sleep 2; touch {mark}) & sleep 60"
            start = time.monotonic()
            with self.assertRaisesRegex(programs.ProgramError, "timed out after 0.3 s"):
                programs.run(["sh", "-c", script], 0.3)
            self.assertLess(time.monotonic() - start, 5)
            time.sleep(2.2)
            self.assertFalse(mark.exists())

    def test_cpu_time_of_descendants_is_not_foreign(self):
        others = machine.ForeignCpu()
        spin = "import time\nwhile time.process_time() < 0.5: pass"
        programs.run(["sh", "-c", f"'{sys.executable}' -c '{spin}'; true"], 60)
        self.assertGreaterEqual(others.own() - others.ours, 0.5)


class WholeRuns(unittest.TestCase):
    def compare(self, *arguments, **environment):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "result"
            argv = [
                sys.executable, str(HERE.parent / "compare"), "--peerweave", str(HERE / "fake_peerweave"), "--mpirun", str(HERE / "fake_launcher"),
                "--oshrun", str(HERE / "fake_launcher"), "--build", folder, "--out", str(out), "--rounds", "2", "--batches", "2",
                "--quiet-cpus", "1000", *arguments,
            ]  # fmt: skip
            done = subprocess.run(argv, capture_output=True, text=True, timeout=120, env={**os.environ, **environment})
            document = json.loads((out / "host-peers.json").read_text()) if out.exists() else None
            text = (out / "host-peers.md").read_text() if out.exists() else ""
        return done, document, text

    def test_all_programs_alternate_and_both_files_are_written(self):
        done, document, text = self.compare("--op", "all-reduce", "--pes", "2", FAKE_US="3")
        self.assertEqual(done.returncode, 0, done.stderr)
        first = document["rows"][0]
        self.assertEqual(first["median_us"], {"peerweave": 3, "openmpi": 10, "openmpi-sm": 5, "openmpi-nocma": 8, "openshmem": 10})
        self.assertEqual({name: len(samples) for name, samples in first["samples"].items()}, dict.fromkeys(first["median_us"], 2))
        self.assertAlmostEqual(first["against_defaults"]["ratio"], 0.3)
        self.assertAlmostEqual(first["against_best"]["ratio"], 0.6)
        self.assertIn("| all-reduce 1K, 2 PEs | dirty | 3.00 | 10.00 | 5.00 (sm) | 10.00 | 0.60 | 0.30 (0.30-0.30) | met | 0.60", text)

    def test_first_barrier_includes_the_time_to_load_the_command(self):
        done, document, _ = self.compare("--op", "init", "--pes", "8")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertGreater(document["rows"][0]["median_us"]["peerweave"], 5000)
        self.assertEqual(document["rows"][0]["median_us"]["openmpi"], 100_000)

    def test_every_program_accepts_every_case(self):
        done, document, _ = self.compare("--rounds", "1", "--batches", "1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([row["errors"] for row in document["rows"]], [{}] * len(cases.CASES))

    def test_strict_run_fails_on_an_unmet_goal(self):
        done, _, _ = self.compare("--op", "barrier", "--pes", "2", "--strict", FAKE_US="9")
        self.assertEqual(done.returncode, 1, done.stderr)
        done, _, _ = self.compare("--op", "barrier", "--pes", "2", "--strict", FAKE_US="1")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_wrong_values_end_with_status_2(self):
        done, document, _ = self.compare("--op", "barrier", "--pes", "2", FAKE_WRONG="4")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(document["rows"][0]["against_best"]["verdict"], "wrong values")

    def test_crash_of_a_peer_is_reported_and_others_are_measured(self):
        done, document, text = self.compare("--op", "get", FAKE_PEER_BEHAVIOUR="crash")
        self.assertEqual(done.returncode, 2)
        self.assertEqual(document["rows"][0]["median_us"], {"peerweave": 1.0})
        self.assertIn("fake: crashed as asked", text)
        self.assertIn("failed", done.stdout)

    def test_hanging_or_broken_peerweave_does_not_stop_the_run(self):
        for behaviour, message in (("hang", "timed out after"), ("crash", "crashed as asked"), ("garbage", "no result")):
            done, document, _ = self.compare("--op", "barrier", "--pes", "2", "--timeout", "1", FAKE_BEHAVIOUR=behaviour)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(message, document["rows"][0]["errors"]["peerweave"])
            self.assertEqual(document["rows"][0]["median_us"]["openmpi"], 10)

    def test_operation_that_a_library_lacks_is_a_dash_and_no_failure(self):
        done, document, _ = self.compare("--op", "reduce-scatter")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(document["rows"][0]["no_such_operation"], ["openmpi-sm", "openshmem"])

    def test_left_out_library_is_named_in_the_report_and_not_started(self):
        done, document, text = self.compare("--op", "barrier", "--pes", "2", "--without", "openmpi", "--mpirun", "no-such-launcher")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(set(document["rows"][0]["median_us"]), {"peerweave", "openshmem"})
        self.assertIn("Left out: openmpi, openmpi-sm, openmpi-nocma, openmpi-counts", text)

    def test_missing_program_error_suggests_without(self):
        done, document, _ = self.compare("--oshrun", "no-such-launcher")
        self.assertEqual(done.returncode, 2)
        self.assertIsNone(document)
        self.assertIn("no-such-launcher: not found; install it, name it with an option, or pass --without openshmem", done.stderr)


if __name__ == "__main__":
    unittest.main()
