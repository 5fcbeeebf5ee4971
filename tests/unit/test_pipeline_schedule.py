"""Pipeline schedules, for all relevant sizes."""

import itertools

import pytest

from trainer.parallel.stages.schedule import SCHEDULES, Unit, by_stage, live_micros, needs, simulate

SIZES = list(itertools.product(range(1, 7), range(1, 17)))
COSTS = {"F": 1.0, "B": 2.0}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(("stages", "micros"), SIZES)
def test_schedule_is_complete_ordered_and_optimal_in_time_and_memory(name, stages, micros):
    units = SCHEDULES[name](stages, micros)
    everything = [Unit(*of) for of in itertools.product(range(stages), "FB", range(micros))]
    assert sorted(units) == sorted(everything)
    places = {unit: place for place, unit in enumerate(units)}
    for unit in units:
        assert all(places[needed] < places[unit] for needed in needs(unit, stages=stages))
    for order in by_stage(units, stages):
        for kind in "FB":
            micro_order = [unit.micro for unit in order if unit.kind == kind]
            assert micro_order == sorted(micro_order)
    timed = simulate(by_stage(units, stages), lambda unit: COSTS[unit.kind])
    assert max(end for _, _, end in timed) == (micros + stages - 1) * (COSTS["F"] + COSTS["B"])
    for stage in range(stages):
        peak = micros if name == "gpipe" else min(stages - stage, micros)
        assert live_micros(units, stage) == peak


def test_deadlocked_schedule_raises_error():
    units = [[Unit(0, "B", 0), Unit(0, "F", 0)], [Unit(1, "F", 0), Unit(1, "B", 0)]]
    with pytest.raises(ValueError, match="stages"):
        simulate(units, lambda _: 1.0)
