//! Every fuzz target takes random inputs.
#![forbid(unsafe_code)]

use stetfs_fuzz::TARGETS;
use stetfs_testkit::host::needs;
use stetfs_testkit::rng::Rng;
use stetfs_testkit::skip_unless;

#[test]
fn every_target_takes_any_input() {
    skip_unless!(needs(false, false, &["mke2fs"]));
    for target in TARGETS.iter() {
        let inputs = if target.is_costly { 60 } else { 2000 };
        for seed in 0..inputs {
            let mut rng = Rng::new(seed);
            let mut input = vec![0; 1 + 4 * rng.below(24) as usize];
            rng.fill(&mut input);
            println!("{} with seed {seed}", target.name);
            target.run(&input);
        }
    }
}
