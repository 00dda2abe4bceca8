//! No bytes make a decoder panic; an accepted record can be used and encoded again.

mod decoders;

use proptest::collection::vec;
use proptest::prelude::*;

use decoders::DECODERS;

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 4096,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn random_bytes(choice: u8, bytes in vec(any::<u8>(), 0..4200)) {
        for (_, decoder) in DECODERS {
            decoder(&[&[choice, 0], &bytes[..]].concat());
        }
    }

    /// One to twelve bytes of a sound record are changed.
    #[test]
    fn damaged_records(choice: u8, edits in vec(any::<[u8; 3]>(), 0..12)) {
        for (_, decoder) in DECODERS {
            decoder(&[&[choice, 1], &edits.concat()[..]].concat());
        }
    }

    /// Damage near the start, where the structure is.
    #[test]
    fn damaged_heads(choice: u8, edits in vec((0u8..96, any::<u8>()), 0..8)) {
        let edits: Vec<u8> = edits.into_iter().flat_map(|(at, with)| [at, 0, with]).collect();
        for (_, decoder) in DECODERS {
            decoder(&[&[choice, 1], &edits[..]].concat());
        }
    }
}

/// Every prefix of a sound record.
#[test]
fn truncated_records() {
    for choice in 0..=255 {
        for (_, decoder) in DECODERS {
            decoder(&[choice]);
            decoder(&[choice, 1]);
            for length in [1, 11, 12, 59, 127, 128, 255, 1023] {
                decoder(&[&[choice, 0], &vec![0xff; length][..]].concat());
                decoder(&[&[choice, 0], &vec![0; length][..]].concat());
            }
        }
    }
}

/// The sound records are accepted: otherwise the tests above would prove nothing.
#[test]
fn the_volumes_are_sound() {
    for choice in 0..=255 {
        let raw = decoders::superblock_bytes(choice);
        let sb = stetfs_format::Superblock::decode(&raw).expect("a superblock");
        assert!(sb.check_features().can_write());
    }
}
