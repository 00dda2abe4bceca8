//! Two devices on one supply against a model of each: one order, one cut, and independent losses.

use proptest::prelude::*;

use super::model_test::{Change, Model, carry_out, change, options, start, state};
use super::*;
use crate::dev::BlockDev;
use crate::error::{MediaError, Op};
use crate::tag::Cause;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Compares every moment of the common order, one of them also by cutting the power.
    #[test]
    fn a_cut_hits_all_media_at_one_moment(
        script in prop::collection::vec((0..2usize, change()), 1..25),
        kinds in [options(), options()],
        seed in any::<u64>(),
    ) {
        let rig = Rig::default();
        let devices = kinds.map(|kind| kind.build_on(&rig, start()));
        for (n, (which, change)) in script.iter().enumerate() {
            prop_assert_eq!(rig.power.changes(), n as u64);
            carry_out(&devices[*which], change).expect("nothing is planned to fail");
        }
        let tapes = devices.each_ref().map(SimDev::tape);
        let order: Vec<usize> = script.iter().map(|(which, _)| *which).collect();
        for (which, tape) in tapes.iter().enumerate() {
            let mine = (0..script.len()).filter(|n| order[*n] == which);
            prop_assert_eq!(tape.numbers(), mine.map(|n| n as u64).collect::<Vec<_>>());
        }

        let moments: Vec<Vec<CrashPoint>> = joint_crash_points(&tapes).collect();
        prop_assert_eq!(moments.len(), script.len() + 1);
        for (n, points) in moments.iter().enumerate() {
            for (which, point) in points.iter().enumerate() {
                let expected = left_at(n, which, &script, kinds[which], seed);
                prop_assert_eq!(point.moment(), n as u64);
                prop_assert_eq!(state(point, seed).to_bytes(), expected, "device {} at \
                    {}", which, n);
            }
        }
        let skipped = joint_crash_points(&tapes).nth(script.len()).expect("the last moment");
        prop_assert_eq!(skipped[0].position() + skipped[1].position(), script.len());

        let n = seed as usize % (script.len() + 1);
        let rig = Rig::default();
        rig.power.cut_at(n as u64);
        let devices = kinds.map(|kind| kind.build_on(&rig, start()));
        for (i, (which, change)) in script.iter().enumerate() {
            prop_assert_eq!(carry_out(&devices[*which], change).is_ok(), i < n);
        }
        for (which, dev) in devices.iter().enumerate() {
            prop_assert_eq!(dev.is_cut(), n < script.len());
            let (cut, taped) = (dev.crash_point(), &moments[n][which]);
            prop_assert_eq!(cut.moment(), n as u64);
            prop_assert_eq!(cut.pieces(), taped.pieces());
            prop_assert_eq!(state(&cut, seed), state(taped, seed));
        }
    }
}

/// Returns what the model of device `which` leaves when the power goes off after `n` changes on
/// both.
fn left_at(
    n: usize,
    which: usize,
    script: &[(usize, Change)],
    kind: SimOptions,
    seed: u64,
) -> Vec<u8> {
    let mut model = Model::new();
    let mine = script[..script.len().min(n + 1)]
        .iter()
        .enumerate()
        .filter(|(_, (of, _))| *of == which);
    for (position, (i, (_, change))) in mine.enumerate() {
        model.apply(position, change, kind, i < n);
    }
    model.after_cut(seed)
}

#[test]
fn a_cut_reaches_who_has_nothing_to_do_with_it() {
    let rig = Rig::default();
    let [one, other] = [0, 1].map(|_| SimOptions::default().build_on(&rig, start()));
    one.write_at(0, &[1; 512], model_test::TAG)
        .expect("a write");
    rig.power.cut_at(1);
    let failed = one.flush(Cause::Log).expect_err("the power goes off");
    assert!(matches!(
        failed,
        MediaError::PowerLost { op: Op::Flush, .. }
    ));
    let failed = other.read_at(0, &mut [0; 512], model_test::TAG);
    assert!(matches!(failed, Err(MediaError::PowerLost { .. })));
    assert!(other.is_cut() && other.crash_point().pieces().is_empty());
    assert_eq!(
        (one.crash_point().pieces().len(), rig.power.changes()),
        (1, 1)
    );
}

/// A failed request that changed nothing has no place in the order; a torn one has.
#[test]
fn only_what_changes_a_medium_is_in_the_order() {
    let rig = Rig::default();
    let [one, other] = [0, 1].map(|_| SimOptions::default().build_on(&rig, start()));
    one.inject(Fault::nth(Op::Write, 0));
    one.inject(Fault::nth(Op::Write, 1).failing(Failure::Torn { sectors: 1 }));
    for _ in 0..2 {
        one.write_at(0, &[1; 1024], model_test::TAG)
            .expect_err("planned");
    }
    other
        .write_at(0, &[1; 512], model_test::TAG)
        .expect("a write");
    assert_eq!(
        (one.tape().numbers(), other.tape().numbers()),
        (&[0][..], &[1][..])
    );
}

/// The time that one medium needs passes for all; the accounts add up to it.
#[test]
fn media_of_one_machine_share_its_time() {
    let rig = Rig::default();
    let [disk, flash] = [Timing::Hdd, Timing::NvmeSsd].map(|timing| {
        let options = SimOptions {
            timing,
            ..SimOptions::default()
        };
        options.build_on(&rig, start())
    });
    flash.inject(Fault::nth(Op::Read, 1));
    let tag = model_test::TAG;
    for dev in [&disk, &flash] {
        dev.write_at(4096, &[1; 4096], tag).expect("a write");
        dev.write_durable(12288, &[&[1; 4096]], tag)
            .expect("a write");
        dev.flush(Cause::Log).expect("a flush");
        dev.read_at(20480, &mut [0; 4096], tag).expect("a read");
        let account = dev.meter().snapshot();
        assert!(account.of(tag).busy_ns > 0 && account.busy_ns(Cause::Log) > 0);
    }
    let spent = || [&disk, &flash].map(|dev| dev.meter().snapshot().total_busy_ns());
    let before = spent();
    assert_eq!(rig.clock.now_ns(), before.iter().sum::<u64>());
    assert_eq!(before[1], 20_000 + 4_007_000 + 1_643_000 + 66_666);
    flash.read_at(0, &mut [0; 512], tag).expect_err("planned");
    assert_eq!(spent(), before);
}
