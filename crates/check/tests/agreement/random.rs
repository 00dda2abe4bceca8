//! Random damage from a seed. A case depends only on its number, so the number in a failure replays
//! it.

use crate::cases::{Case, Scratch};
use crate::structures::{self, Structure};
use crate::volumes::Volume;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    fn one_of<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }
}

/// What can be damaged in a volume.
struct Choices<'v> {
    structures: Vec<Structure>,
    /// Blocks that hold anything, so that damage also falls outside of known structures.
    blocks: Vec<usize>,
    inodes: Vec<u32>,
    scratch: Scratch<'v>,
}

/// Builds `count` cases, from number `first` on.
pub fn cases(volumes: &[Volume], first: u64, count: u64) -> Vec<(usize, Case)> {
    let mut choices: Vec<Choices<'_>> = volumes.iter().map(Choices::of).collect();
    (first..first + count)
        .map(|seed| {
            let mut random = Random(seed);
            let at = random.below(volumes.len());
            (at, choices[at].case(seed, &mut random, &volumes[at]))
        })
        .collect()
}

impl<'v> Choices<'v> {
    fn of(volume: &'v Volume) -> Self {
        let size = volume.read.sb.block_size();
        let blocks = volume.bytes.chunks_exact(size).enumerate();
        Self {
            structures: structures::of(&volume.read),
            blocks: blocks
                .filter(|(_, block)| block.iter().any(|&byte| byte != 0))
                .map(|(at, _)| at)
                .collect(),
            inodes: volume
                .read
                .inodes_in_use()
                .into_iter()
                .map(|ino| ino.0)
                .collect(),
            scratch: Scratch::new(volume),
        }
    }

    fn case(&mut self, seed: u64, random: &mut Random, volume: &Volume) -> Case {
        let mut writes = Vec::new();
        let mut hit = Vec::new();
        let mut what = format!("STETFS_CHECK_SEED={seed}");
        for _ in 0..=random.below(3) {
            if random.below(8) == 0 {
                let size = volume.read.sb.block_size();
                let offset = random.one_of(&self.blocks) * size + random.below(size);
                writes.push((offset, vec![random.next() as u8]));
                what += &format!(", byte {offset}");
                continue;
            }
            let at = random.below(self.structures.len());
            let structure = &self.structures[at];
            hit.push(at);
            let (offset, size, name) = if random.below(4) == 0 {
                (structure.start + random.below(structure.size), 1, "a byte")
            } else {
                let field = random.one_of(&structure.fields);
                (field.offset, field.size.min(8), field.name.as_str())
            };
            what += &format!(", {}: {name}", structure.name);
            let mut old = [0; 8];
            old[..size].copy_from_slice(&volume.bytes[offset..offset + size]);
            let value = self.value(random, u64::from_le_bytes(old), size);
            writes.push((offset, value.to_le_bytes()[..size].to_vec()));
        }
        // New checksums let damage reach the checks behind them.
        let sealed: Vec<&Structure> = match random.below(4) {
            0 => Vec::new(),
            _ => hit.iter().map(|&at| &self.structures[at]).collect(),
        };
        self.scratch.case(what, &writes, &sealed)
    }

    fn value(&self, random: &mut Random, old: u64, size: usize) -> u64 {
        match random.below(8) {
            0 => random.next(),
            1 => random.next() % 64,
            2 => old.wrapping_add(1),
            3 => old.wrapping_sub(1),
            4 => u64::from(*random.one_of(&self.inodes)),
            5 => *random.one_of(&self.blocks) as u64,
            _ => old ^ 1 << random.below(size * 8),
        }
    }
}
