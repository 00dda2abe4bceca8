//! What a check costs.
//!
//! `check_cost IMAGE...` checks images and prints what is wrong with them and the time of a repeated check.

use std::fs::{self, File};
use std::process::ExitCode;
use std::time::Instant;

use stetfs_check::{Checker, Source};

fn time_us<S: Source + ?Sized>(checker: &mut Checker, source: &S) -> f64 {
    let rounds = 20;
    let start = Instant::now();
    for _ in 0..rounds {
        checker.check(source);
    }
    start.elapsed().as_secs_f64() * 1e6 / f64::from(rounds)
}

fn main() -> ExitCode {
    let mut checker = Checker::new();
    let mut clean = true;
    for path in std::env::args().skip(1) {
        let bytes = fs::read(&path).expect("an image");
        let report = checker.check(bytes.as_slice());
        println!("{path}: {report}");
        clean &= report.is_clean();
        let memory = time_us(&mut checker, bytes.as_slice());
        let file = File::open(&path).expect("an image");
        let file = time_us(&mut checker, &file);
        println!("{path}: {memory:.1} us from memory, {file:.1} us from the file");
    }
    if clean {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
