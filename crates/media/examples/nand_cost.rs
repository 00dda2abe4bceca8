//! What a simulated NAND part costs the machine that it runs on: `nand_cost [DIRECTORY]`, for parts
//! in memory and, in that directory, in a file; and what a state after a power cut costs.

use std::path::Path;
use std::time::Instant;

use stetfs_media::nand::{
    BlockAddr, Nand, NandError, NandFile, NandOptions, NandPart, NandSim, PageNo, parts,
};
use stetfs_media::{Cause, Class, Tag};

const TAG: Tag = Tag::new(Class::Data, Cause::Home);

fn main() {
    let directory = std::env::args().nth(1);
    if let Err(e) = measure_all(100_000, directory.as_ref().map(Path::new)) {
        eprintln!("{e}");
        std::process::exit(1);
    }
}

fn measure_all(requests: u32, directory: Option<&Path>) -> Result<(), NandError> {
    // All blocks good, with the wrong bits of the part: the worse case for a read.
    let good = |mut part: NandPart| {
        part.wear.factory_bad_ppm = 0;
        part.wear.early_bad_ppm = 0;
        part
    };
    for (name, part) in [("JFTL", good(parts::JFTL)), ("MLC", good(parts::MLC))] {
        let blocks = (requests / part.geometry.pages_per_block).max(1);
        let part = part.with_blocks(blocks * part.geometry.planes);
        let options = NandOptions::new(part);
        let memory = NandOptions {
            record: false,
            ..options
        };
        measure(&format!("{name} in memory"), &memory.build())?;
        let taped = options.build();
        measure(&format!("{name} in memory with a tape"), &taped)?;
        states(name, &taped);
        if let Some(directory) = directory {
            let path = directory.join("nand_cost");
            let file = NandFile::options().create(&path, part, [1; 16])?;
            let measured = measure(&format!("{name} in a file"), &file);
            drop(file);
            // What is left of it is of no use to anybody.
            let _ = std::fs::remove_file(&path);
            measured?;
        }
    }
    Ok(())
}

/// Programs every page, reads it, erases every block.
fn measure(name: &str, nand: &impl Nand) -> Result<(), NandError> {
    let geometry = nand.geometry();
    let mut data = vec![7; geometry.page_bytes as usize];
    let mut spare = vec![0xff; geometry.spare_bytes as usize];
    let pages = || (0..geometry.pages()).map(PageNo);
    let us =
        |count: u32, began: Instant| began.elapsed().as_nanos() as f64 / 1e3 / f64::from(count);

    let began = Instant::now();
    for page in pages() {
        nand.program(page, &data, &spare, TAG)?;
    }
    let program_us = us(geometry.pages(), began);
    let began = Instant::now();
    let mut corrected = 0;
    for page in pages() {
        corrected += u64::from(nand.read(page, &mut data, &mut spare, TAG)?.bits);
    }
    let read_us = us(geometry.pages(), began);
    let began = Instant::now();
    for block in (0..geometry.blocks).map(BlockAddr) {
        nand.erase(block, Cause::Gc)?;
    }
    let erase_us = us(geometry.blocks, began);
    println!(
        "{name}: program {program_us:.2} us, read {read_us:.2} us ({:.2} bits corrected), erase \
            {erase_us:.2} us",
        corrected as f64 / f64::from(geometry.pages())
    );
    Ok(())
}

/// Every outcome at some moments of a tape.
fn states(name: &str, nand: &NandSim) {
    let tape = nand.tape();
    let began = Instant::now();
    let mut count = 0;
    for point in tape.crash_points().take(1000) {
        for outcome in point.outcomes() {
            drop(std::hint::black_box(point.crash(*outcome)));
            count += 1;
        }
    }
    let us = began.elapsed().as_nanos() as f64 / 1e3 / f64::from(count);
    println!("{name}: state after a power cut {us:.2} us");
}

/// A small run, so that this program cannot rot.
#[cfg(test)]
mod tests {
    #[test]
    fn every_measurement_runs() {
        let directory = tempfile::tempdir().expect("a directory");
        super::measure_all(20, Some(directory.path())).expect("parts without bad blocks");
    }
}
