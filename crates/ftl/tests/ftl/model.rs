//! Random steps against the model, on parts so small that garbage collection, checkpoints and wear
//! happen most of the time.

use super::*;
use stetfs_ftl::Inspection;
use stetfs_media::nand::NandOptions;

/// Makes steps and remounts; compares every page at the end of each round. Returns the part.
fn run(part: NandPart, seed: u64, rounds: u64, steps: u64, buffer: usize) -> Arc<NandSim> {
    let options = NandOptions {
        record: false,
        ..NandOptions::new(part)
    };
    let nand = Arc::new(options.build());
    let mut ftl = create(&nand, buffer);
    let mut model = Model::new(pages_of(&ftl), buffer > 0);
    let mut chance = Chance(seed);
    let mut number = 0;
    for round in 0..rounds {
        for _ in 0..steps {
            let step = any_step(&mut chance, &ftl, number);
            number += 1;
            if let Err(e) = carry_out(&ftl, &step) {
                panic!("seed {seed}, step {number} {step:?}: {e}");
            }
            model.apply(&step);
            let page = chance.below(pages_of(&ftl));
            let mut out = vec![0; PAGE];
            let read = ftl.read_at(page * PAGE as u64, &mut out, TAG);
            read.unwrap_or_else(|e| panic!("seed {seed}, step {number}: {e}"));
            let expected = content(model.now[page as usize]);
            assert!(out == expected, "seed {seed}, step {number}: page {page}");
        }
        let all = read_all(&ftl).unwrap_or_else(|e| panic!("seed {seed}, round {round}: {e}"));
        for (page, (found, n)) in all.iter().zip(&model.now).enumerate() {
            assert!(
                *found == content(*n),
                "seed {seed}, round {round}: page {page}"
            );
        }
        ftl.flush(Cause::Home).expect("a flush");
        model.settle();
        drop(ftl);
        let check = Inspection::new(nand.clone()).and_then(|mut found| found.check());
        let check = check.unwrap_or_else(|e| panic!("seed {seed}, round {round}: {e}"));
        assert!(check.is_clean(), "seed {seed}, round {round}: {check:?}");
        let mount = MountOptions {
            write_buffer_pages: buffer,
            ..MountOptions::default()
        };
        ftl = Ftl::mount(nand.clone(), mount)
            .unwrap_or_else(|e| panic!("seed {seed}, round {round}: {e}"));
    }
    nand
}

#[test]
fn the_layer_is_a_plain_device() {
    for seed in 0..4 {
        run(small(96, 8), seed, 6, 1500, 0);
    }
    run(small(128, 4), 4, 6, 1500, 0);
    run(small(40, 32), 5, 6, 1500, 0);
}

#[test]
fn with_a_write_buffer_too() {
    for seed in 10..12 {
        run(small(96, 8), seed, 6, 1500, 16);
    }
}

/// Ten million steps and as many reads: `make ftl-long`.
#[test]
#[ignore = "takes minutes; make ftl-long"]
fn ten_million_steps() {
    let flawed = NandPart {
        geometry: small(512, 32).geometry,
        ..parts::JFTL
    };
    for (seed, part, buffer) in [
        (30, small(96, 8), 0),
        (31, small(40, 32), 0),
        (32, small(1024, 32), 0),
        (33, small(1024, 32), 64),
        (34, flawed.with_seed(34), 0),
    ] {
        let nand = run(part, seed, 20, 100_000, buffer);
        let worn = Inspection::new(nand).expect("a layer").wear();
        let (least, most) = (worn.erases.iter().min(), worn.erases.iter().max());
        println!("seed {seed}: 2,000,000 steps, blocks erased {least:?} to {most:?} times");
    }
}

/// Blocks are bad from the factory and go bad in program and erase; bits are wrong, a few more
/// after each erase. The user notices none of it.
#[test]
fn bad_blocks_and_wrong_bits_are_no_ones_business() {
    for seed in 20..23 {
        let mut part = small(128, 8).with_seed(seed);
        part.wear.endurance_erases = 400;
        part.wear.factory_bad_ppm = 30_000;
        part.wear.early_bad_ppm = 15_000;
        part.ecc.strength_bits = 8;
        part.wear.fresh_errors_per_pbit = 20_000_000_000;
        part.wear.worn_errors_per_pbit = 300_000_000_000;
        part.wear.disturb_errors_per_pbit = 100_000_000;
        let nand = run(part, seed, 5, 1200, 0);
        let bad = (0..128).filter(|b| {
            use stetfs_media::nand::Nand;
            nand.is_bad(stetfs_media::nand::BlockAddr(*b)) == Ok(true)
        });
        assert!(bad.count() > 2, "seed {seed} was lucky");
    }
}

/// The same steps on the same part program the same pages in the same order.
#[test]
fn the_same_again() {
    let tape = || {
        let nand = Arc::new(NandSim::new(small(64, 8)));
        let ftl = create(&nand, 0);
        let mut chance = Chance(7);
        for number in 0..600 {
            let step = any_step(&mut chance, &ftl, number);
            carry_out(&ftl, &step).expect("a step");
        }
        drop(ftl);
        mount(&nand);
        nand.tape().entries().to_vec()
    };
    assert!(tape() == tape());
}
