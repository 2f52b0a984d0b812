"""Finds test_*.py beside this file, runs each test with a hard limit, and closes with one line of counts."""
import faulthandler
import importlib.util
import os
import pathlib
import signal
import sys
import time
import traceback
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))


class Result(unittest.TestResult):
    def startTest(self, test):
        super().startTest(test)
        self.begin = time.monotonic()
        self.outcome = "ok"
        print(f"{short_name(test)} ... ", end="", flush=True)

    def _note(self, outcome, detail=""):
        self.outcome = outcome
        self.detail = detail

    def addError(self, test, err):
        super().addError(test, err)
        self._note("FAILED", "".join(traceback.format_exception(*err)))

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self._note("FAILED", "".join(traceback.format_exception(*err)))

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self._note("FAILED", f"{subtest}\n" + "".join(traceback.format_exception(*err)))

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self._note(f"skipped: {reason}")

    def stopTest(self, test):
        super().stopTest(test)
        print(f"{self.outcome} ({time.monotonic() - self.begin:.1f} s)", flush=True)
        if self.outcome == "FAILED":
            print("    " + self.detail.replace("\n", "\n    "), flush=True)


def short_name(test):
    return ".".join(test.id().split(".")[-3:])


def whole_test(test):
    return getattr(test, "test_case", test)  # of a subtest: the test it belongs to


def all_tests(suite):
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from all_tests(item)
        else:
            yield item


def stop(number, _):
    """A runner that is told to stop leaves nothing behind either."""
    import support
    for test in support.ACTIVE:
        test.kill_everything()
    print(f"interop: stopped by {signal.Signals(number).name}", flush=True)
    os._exit(128 + number)


def main(patterns):
    faulthandler.enable()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup stays nohup
            signal.signal(number, stop)
    loader = unittest.TestLoader()
    suite = unittest.TestSuite()
    broken = 0
    for file in sorted(HERE.glob("test_*.py")):
        try:
            spec = importlib.util.spec_from_file_location(file.stem, file)
            module = importlib.util.module_from_spec(spec)
            sys.modules[file.stem] = module
            spec.loader.exec_module(module)
        except Exception:
            broken += 1
            print(f"{file.name} ... FAILED: it cannot be loaded")
            traceback.print_exc()
            continue
        suite.addTests(loader.loadTestsFromModule(module))
    chosen = unittest.TestSuite(
        test for test in all_tests(suite) if not patterns or any(p in short_name(test) for p in patterns))
    if chosen.countTestCases() == 0 and not broken:
        print(f"interop: no test matches {' '.join(patterns)}" if patterns else "interop: there are no tests")
        print("0 passed, 1 failed, 0 skipped")
        return 1
    result = Result()
    chosen.run(result)
    # A second try tells a broken test from a machine that was busy; it is said, never silent.
    again = {test.id(): test for test in map(whole_test, dict(result.failures + result.errors))}
    failed = broken
    for test in again.values():
        second = Result()
        print("second try: ", end="")
        unittest.TestSuite([type(test)(test._testMethodName)] if isinstance(test, unittest.TestCase) else []).run(second)
        if second.testsRun == 0 or not second.wasSuccessful():
            failed += 1
    skipped = len(result.skipped)
    print(f"{result.testsRun - (failed - broken) - skipped} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
