//! Systematic damage: one field at a time.

use crate::structures::{self, Field, Structure};
use crate::volumes::Volume;

/// Damage to a volume.
#[derive(Clone, Debug)]
pub struct Case {
    pub what: String,
    /// Where to write which bytes.
    pub changes: Vec<(usize, Vec<u8>)>,
}

/// A volume to build damage on; it is restored after each case.
pub struct Scratch<'v> {
    volume: &'v Volume,
    bytes: Vec<u8>,
}

impl<'v> Scratch<'v> {
    pub fn new(volume: &'v Volume) -> Self {
        Self {
            volume,
            bytes: volume.bytes.clone(),
        }
    }

    /// Builds the case with these `writes` and with new checksums for the `sealed` structures.
    pub fn case(
        &mut self,
        what: String,
        writes: &[(usize, Vec<u8>)],
        sealed: &[&Structure],
    ) -> Case {
        let mut ranges: Vec<std::ops::Range<usize>> = Vec::new();
        for (offset, bytes) in writes {
            let range = *offset..*offset + bytes.len();
            self.bytes[range.clone()].copy_from_slice(bytes);
            ranges.push(range);
        }
        for structure in sealed {
            ranges.extend(structures::reseal(
                structure,
                &self.volume.read,
                &mut self.bytes,
            ));
        }
        let changes = ranges
            .iter()
            .map(|range| (range.start, self.bytes[range.clone()].to_vec()))
            .collect();
        for range in ranges {
            self.bytes[range.clone()].copy_from_slice(&self.volume.bytes[range]);
        }
        Case { what, changes }
    }
}

/// Returns the values to try in a field: its neighbours, its extremes, and some single bits
/// flipped.
fn values(name: &str, old: &[u8]) -> Vec<Vec<u8>> {
    let size = old.len();
    if ![1, 2, 4, 8].contains(&size) {
        let mut flipped = old.to_vec();
        flipped[0] ^= 1;
        return vec![flipped];
    }
    let mut word = [0; 8];
    word[..size].copy_from_slice(old);
    let old = u64::from_le_bytes(word);
    let mask = u64::MAX >> (64 - 8 * size);
    // Each bit of these fields has its own meaning.
    let is_set = ["i_flags", "i_size_high"].contains(&name) || name.starts_with("s_feature_");
    let bits = if is_set { 32 } else { 0 };
    let bits = (0..bits).map(|bit| old ^ 1 << bit);
    let in_name: &[u8] = if name.contains(" name[") { b"/." } else { b"" };
    let mut found: Vec<u64> = [
        0,
        1,
        mask,
        old ^ 1,
        old ^ 1 << (8 * size - 1),
        old ^ 4,
        old ^ 0x10,
        old ^ 0x80,
        old.wrapping_add(1),
        old.wrapping_sub(1),
        old.swap_bytes() >> (64 - 8 * size),
    ]
    .into_iter()
    .chain(bits)
    .chain(in_name.iter().map(|&byte| byte.into()))
    .map(|value| value & mask)
    .filter(|&value| value != old)
    .collect();
    found.sort_unstable();
    found.dedup();
    found
        .into_iter()
        .map(|value| value.to_le_bytes()[..size].to_vec())
        .collect()
}

/// Builds the wanted cases: each field of each structure, with new checksums; and each structure
/// once with a wrong checksum.
pub fn of(volume: &Volume, mut is_wanted: impl FnMut(&str) -> bool) -> Vec<Case> {
    let mut scratch = Scratch::new(volume);
    let mut cases = Vec::new();
    for structure in structures::of(&volume.read) {
        for (i, field) in structure.fields.iter().enumerate() {
            let Field { name, offset, size } = field;
            let old = &volume.bytes[*offset..*offset + *size];
            for value in values(name, old) {
                let what = format!("{}: {name} {} -> {}", structure.name, hex(old), hex(&value));
                if is_wanted(&what) {
                    cases.push(scratch.case(what, &[(*offset, value)], &[&structure]));
                }
            }
            let what = format!("{}: {name}, checksum left", structure.name);
            if i == 0 && is_wanted(&what) {
                let mut value = old.to_vec();
                value[0] ^= 0x20;
                cases.push(scratch.case(what, &[(*offset, value)], &[]));
            }
        }
    }
    cases
}

fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .rev()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}
