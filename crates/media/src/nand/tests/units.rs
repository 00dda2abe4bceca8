//! Four units in a page: compared with what was programmed, and counted page by page as the part
//! does.

use std::sync::Arc;

use super::*;
use crate::error::Op;
use crate::sim::Fault;

/// Pages of four times 512 bytes.
const LARGE: NandPart = NandPart {
    geometry: NandGeometry {
        page_bytes: 2048,
        spare_bytes: 64,
        ..SMALL.geometry
    },
    ..SMALL
};

fn build() -> (Arc<NandSim>, UnitNand, NandPart) {
    let nand = Arc::new(NandSim::new(LARGE));
    let units = UnitNand::new(nand.clone(), 4);
    let part = NandPart {
        geometry: units.geometry(),
        ..LARGE
    };
    (nand, units, part)
}

fn assert_holds(units: &UnitNand, part: &NandPart, unit: u32, n: Option<u64>) {
    let found = read(units, unit);
    let (data, spare) = n.map_or_else(|| (vec![0xff; 512], vec![0xff; 16]), |n| content(part, n));
    assert_eq!(found.result, Ok(Corrected::default()), "unit {unit}");
    assert!(found.data == data && found.spare == spare, "unit {unit}");
    let mut spare_alone = [0; 16];
    let corrected = units.read_spare(PageNo(unit), &mut spare_alone, TAG);
    assert!(corrected.is_ok() && spare_alone[..] == spare, "unit {unit}");
}

#[test]
fn a_page_is_programmed_when_its_units_are_there() {
    let (nand, units, part) = build();
    assert_eq!(
        (part.geometry.pages_per_block, part.geometry.page_bytes),
        (16, 512)
    );
    units.erase(BlockAddr(1), Cause::Gc).expect("an erase");
    let programs = || nand.meter().snapshot().total().writes;
    for unit in 16..27 {
        program(&units, &part, unit, u64::from(unit)).expect("a unit");
        assert_eq!(programs(), u64::from(unit - 15) / 4);
        for past in 16..=unit {
            assert_holds(&units, &part, past, Some(past.into()));
        }
        assert_holds(&units, &part, unit + 1, None);
    }
    units.settle().expect("the rest of a page");
    assert_eq!(programs(), 3);
    for unit in 16..27 {
        assert_holds(&units, &part, unit, Some(unit.into()));
    }
    assert_holds(&units, &part, 27, None);
    // A new controller finds the same units.
    let again = UnitNand::new(nand.clone(), 4);
    assert_holds(&again, &part, 26, Some(26));
    assert_eq!(nand.meter().snapshot().total().write_bytes, 3 * 2048);
}

/// Reading the units of a page one after the other costs one read.
#[test]
fn the_register_holds_a_page() {
    let (nand, units, part) = build();
    units.erase(BlockAddr(0), Cause::Gc).expect("an erase");
    (0..16).for_each(|unit| program(&units, &part, unit, 1).expect("a unit"));
    let before = nand.meter().snapshot().total().reads;
    for unit in 0..16 {
        let _ = read(&units, unit);
    }
    assert_eq!(nand.meter().snapshot().total().reads - before, 4);
    // After the erase, the register does not hold the old content.
    units.erase(BlockAddr(0), Cause::Gc).expect("an erase");
    assert_holds(&units, &part, 15, None);
}

/// Bytes are counted under their own label, whatever page they were in.
#[test]
fn the_meter_tells_units_apart() {
    let (nand, units, part) = build();
    units.erase(BlockAddr(0), Cause::Gc).expect("an erase");
    let log = Tag::new(Class::Journal, Cause::Log);
    for unit in 0..4 {
        let (data, spare) = content(&part, 7);
        let tag = if unit == 1 { TAG } else { log };
        units
            .program(PageNo(unit), &data, &spare, tag)
            .expect("a unit");
    }
    let meter = nand.meter().snapshot();
    assert_eq!(meter.of(TAG).write_bytes, 512);
    assert_eq!(meter.of(log).write_bytes, 3 * 512);
}

/// If a page cannot be programmed, its durable units can still be read; only the last unit fails.
#[test]
fn what_waited_outlives_a_failed_program() {
    let (nand, units, part) = build();
    units.erase(BlockAddr(0), Cause::Gc).expect("an erase");
    nand.inject(Fault::nth(Op::Write, 0));
    (0..3).for_each(|unit| program(&units, &part, unit, 5).expect("a unit"));
    assert_eq!(
        program(&units, &part, 3, 5),
        Err(NandError::ProgramFailed { page: PageNo(3) })
    );
    units.mark_bad(BlockAddr(0), Cause::Gc).expect("a mark");
    (0..3).for_each(|unit| assert_holds(&units, &part, unit, Some(5)));
    units.settle().expect("nothing to be done");
}

#[test]
#[should_panic(expected = "out of order")]
fn units_are_programmed_in_order() {
    let (_nand, units, part) = build();
    units.erase(BlockAddr(0), Cause::Gc).expect("an erase");
    program(&units, &part, 0, 1).expect("a unit");
    let _ = program(&units, &part, 2, 1);
}
