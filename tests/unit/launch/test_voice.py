"""Lines for the user, said by a thread."""

import threading

from dsrun.launch.voice import Voice


def test_all_lines_are_said_in_their_order_before_the_end():
    said = []
    with Voice(said.append, patience_s=60) as voice:
        for number in range(100):
            voice(str(number))
    assert said == [str(number) for number in range(100)]


def test_who_is_not_heard_goes_on():
    heard, said = threading.Event(), []

    def say(line):
        heard.wait(60)
        said.append(line)

    with Voice(say, patience_s=0.1) as voice:
        for line in ("one", "two"):
            voice(line)
        assert said == []
    assert said == []
    heard.set()
    voice._thread.join(60)
    assert said == ["one", "two"]


def test_a_listener_that_is_gone_is_no_error():
    said = []

    def say(line):
        said.append(line)
        raise BrokenPipeError

    with Voice(say, patience_s=60) as voice:
        voice("one")
        voice("two")
    assert said == ["one", "two"]
