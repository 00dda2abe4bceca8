//! What the layer costs: `ftl_cost`. Time of the processor for a write, a read, a remap and a
//! mount, on a part that is nothing but memory; write amplification with the device full, by how
//! much of the part that is; and what a mount of a 128 MiB part reads.

use std::ops::Range;
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use parking_lot::Mutex;
use stetfs_ftl::{Ftl, FtlError, FtlOptions, Inspection, MountOptions};
use stetfs_media::nand::{
    BlockAddr, Corrected, Nand, NandEcc, NandError, NandGeometry, NandOptions, PageNo, parts,
};
use stetfs_media::{BlockDev, Cause, Class, JournalCopy, MediaError, Meter, RemapPair, Tag};

const TAG: Tag = Tag::new(Class::Data, Cause::Home);

/// A part that keeps pages in memory and does nothing else: no checks, no states, no time. Of a
/// page whose bytes are all the same it keeps one, so that a part can be larger than the memory.
struct Memory {
    geometry: NandGeometry,
    cells: Mutex<Cells>,
    meter: Meter,
}

struct Cells {
    states: Vec<State>,
    spares: Vec<u8>,
    data: Vec<Box<[u8]>>,
}

#[derive(Clone, Copy)]
enum State {
    Erased,
    AllOf(u8),
    Stored,
}

impl Memory {
    fn new(geometry: NandGeometry) -> Self {
        let pages = geometry.pages() as usize;
        Self {
            geometry,
            cells: Mutex::new(Cells {
                states: vec![State::Erased; pages],
                spares: vec![0xff; pages * geometry.spare_bytes as usize],
                data: vec![Box::default(); pages],
            }),
            meter: Meter::new(),
        }
    }

    fn spare_of(&self, page: PageNo) -> Range<usize> {
        let len = self.geometry.spare_bytes as usize;
        page.0 as usize * len..(page.0 as usize + 1) * len
    }
}

impl Nand for Memory {
    fn describe(&self) -> String {
        "memory".to_owned()
    }

    fn geometry(&self) -> NandGeometry {
        self.geometry
    }

    fn ecc(&self) -> NandEcc {
        NandEcc {
            codeword_bytes: 512,
            strength_bits: 1,
        }
    }

    fn read(
        &self,
        page: PageNo,
        data: &mut [u8],
        spare: &mut [u8],
        tag: Tag,
    ) -> Result<Corrected, NandError> {
        let cells = self.cells.lock();
        match cells.states[page.0 as usize] {
            State::Erased => data.fill(0xff),
            State::AllOf(byte) => data.fill(byte),
            State::Stored => data.copy_from_slice(&cells.data[page.0 as usize]),
        }
        drop(cells);
        self.read_spare(page, spare, tag)
    }

    fn read_spare(
        &self,
        page: PageNo,
        spare: &mut [u8],
        _tag: Tag,
    ) -> Result<Corrected, NandError> {
        let cells = self.cells.lock();
        match cells.states[page.0 as usize] {
            State::Erased => spare.fill(0xff),
            _ => spare.copy_from_slice(&cells.spares[self.spare_of(page)]),
        }
        Ok(Corrected::default())
    }

    fn program(&self, page: PageNo, data: &[u8], spare: &[u8], _tag: Tag) -> Result<(), NandError> {
        let mut cells = self.cells.lock();
        let at = page.0 as usize;
        cells.spares[self.spare_of(page)].copy_from_slice(spare);
        cells.states[at] = if data[..data.len() - 1] == data[1..] {
            State::AllOf(data[0])
        } else {
            if cells.data[at].is_empty() {
                cells.data[at] = data.into();
            } else {
                cells.data[at].copy_from_slice(data);
            }
            State::Stored
        };
        Ok(())
    }

    fn erase(&self, block: BlockAddr, _cause: Cause) -> Result<(), NandError> {
        let first = self.geometry.page_at(block, 0).0 as usize;
        let pages = first..first + self.geometry.pages_per_block as usize;
        self.cells.lock().states[pages].fill(State::Erased);
        Ok(())
    }

    fn is_bad(&self, _block: BlockAddr) -> Result<bool, NandError> {
        Ok(false)
    }

    fn mark_bad(&self, _block: BlockAddr, _cause: Cause) -> Result<(), NandError> {
        Ok(())
    }

    fn meter(&self) -> &Meter {
        &self.meter
    }
}

/// Numbers by chance, always the same.
struct Chance(u64);

impl Chance {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

#[derive(Debug)]
#[allow(dead_code, reason = "shown by Debug")]
enum Failure {
    Layer(FtlError),
    Request(MediaError),
}

impl From<FtlError> for Failure {
    fn from(e: FtlError) -> Self {
        Self::Layer(e)
    }
}

impl From<NandError> for Failure {
    fn from(e: NandError) -> Self {
        Self::Layer(e.into())
    }
}

impl From<MediaError> for Failure {
    fn from(e: MediaError) -> Self {
        Self::Request(e)
    }
}

fn main() {
    if let Err(e) = measure_all(1, 1, 2_000_000) {
        eprintln!("{e:?}");
        std::process::exit(1);
    }
}

/// On parts smaller by a divisor, the largest one by another, with so many requests.
fn measure_all(divisor: u32, large_divisor: u32, requests: u64) -> Result<(), Failure> {
    speed(divisor, requests)?;
    for share in [80, 90] {
        for hot in [None, Some((20, 80))] {
            amplification(divisor, share, hot)?;
        }
    }
    mount_reads(divisor)?;
    mount_speed(large_divisor)
}

/// Nanoseconds that this thread has had the processor, so that it does not matter what else runs on
/// the machine: the first number of schedstat (Documentation/scheduler/sched-stats.rst). Where
/// there is none, those that have passed.
fn processor_ns() -> u64 {
    static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let first = stat.and_then(|stat| stat.split(' ').next()?.parse().ok());
    first.unwrap_or_else(|| BEGAN.elapsed().as_nanos() as u64)
}

fn ns_each(began: u64, count: u64) -> f64 {
    (processor_ns() - began) as f64 / count as f64
}

/// Pages of 4 KiB in memory.
fn speed(divisor: u32, requests: u64) -> Result<(), Failure> {
    let geometry = NandGeometry {
        page_bytes: 4096,
        spare_bytes: 64,
        pages_per_block: 64,
        blocks: 2048 / divisor,
        planes: 1,
        bad_mark: 0,
    };
    let options = FtlOptions {
        over_provisioning_percent: 20,
        ..FtlOptions::default()
    };
    let nand = Arc::new(Memory::new(geometry));
    let ftl = Ftl::create(nand.clone(), [1; 16], &options, MountOptions::default())?;
    let page_bytes = u64::from(geometry.page_bytes);
    let pages = ftl.size() / page_bytes;
    let mut data = vec![7; page_bytes as usize];
    data[0] = 1;
    for page in 0..pages {
        ftl.write_at(page * page_bytes, &data, TAG)?;
    }
    let mut chance = Chance(1);
    let began = processor_ns();
    for _ in 0..requests {
        ftl.write_at(chance.below(pages) * page_bytes, &data, TAG)?;
    }
    let write_ns = ns_each(began, requests);
    let amplification = ftl.stats().write_amplification().unwrap_or(1.0);
    let began = processor_ns();
    for _ in 0..requests {
        ftl.read_at(chance.below(pages) * page_bytes, &mut data, TAG)?;
    }
    let read_ns = ns_each(began, requests);
    let remap = ftl.remap().ok_or(FtlError::NotFormatted)?;
    let (mut remap_ns, rounds) = (0, requests / 2000 + 1);
    for round in 0..rounds {
        let journal = pages - 256;
        for page in journal..pages {
            ftl.write_at(page * page_bytes, &data, TAG)?;
        }
        let pair = |i| RemapPair {
            home: (round * 7919 + i * 4099) % journal,
            journal: journal + i,
        };
        let pairs: Vec<RemapPair> = (0..256).map(pair).collect();
        let began = processor_ns();
        remap.remap(&pairs, JournalCopy::Released)?;
        remap_ns += processor_ns() - began;
    }
    let (program_alone, read_alone) = bare(&nand, requests)?;
    let copies = amplification - 1.0;
    println!(
        "4 KiB in memory, {} MiB: write {write_ns:.0} ns, of which the part itself takes {:.0} for \
            {amplification:.2} programs and {copies:.2} reads; \
         read {read_ns:.0} ns, of which {read_alone:.0}; remap of 256 pairs {:.1} us",
        geometry.data_bytes() >> 20,
        amplification * program_alone + copies * read_alone,
        remap_ns as f64 / 1e3 / rounds as f64,
    );
    Ok(())
}

/// What the part takes for a program and for a read, at random places, without a layer. It is not
/// used any more then.
fn bare(nand: &Memory, requests: u64) -> Result<(f64, f64), NandError> {
    let geometry = nand.geometry();
    let mut data = vec![7; geometry.page_bytes as usize];
    data[0] = 1;
    let mut spare = vec![0; geometry.spare_bytes as usize];
    let mut chance = Chance(2);
    let mut any_page = || PageNo(chance.below(geometry.pages().into()) as u32);
    let began = processor_ns();
    for _ in 0..requests {
        nand.program(any_page(), &data, &spare, TAG)?;
    }
    let program_ns = ns_each(began, requests);
    let began = processor_ns();
    for _ in 0..requests {
        let _ = nand.read(any_page(), &mut data, &mut spare, TAG)?;
    }
    Ok((program_ns, ns_each(began, requests)))
}

/// JFTL's part, with what is exported being that share of all of it, overwritten at random; with
/// hot data, a share of the pages gets a share of the writes.
fn amplification(divisor: u32, share: u32, hot: Option<(u64, u64)>) -> Result<(), Failure> {
    let part = parts::JFTL.flawless().with_blocks(8192 / divisor);
    let create = |percent| {
        let options = NandOptions {
            record: false,
            ..NandOptions::new(part)
        };
        let options_of_layer = FtlOptions {
            over_provisioning_percent: percent,
            bad_blocks_percent: 0,
        };
        let nand = Arc::new(options.build());
        Ftl::create(nand, [1; 16], &options_of_layer, MountOptions::default())
    };
    let target = part.geometry.data_bytes() * u64::from(share) / 100;
    let mut ftl = create(1)?;
    for percent in 2..90 {
        if ftl.size() <= target {
            break;
        }
        ftl = create(percent)?;
    }
    let pages = ftl.size() / 512;
    for page in 0..pages {
        ftl.write_at(page * 512, &[1; 512], TAG)?;
    }
    let mut chance = Chance(3);
    let mut overwrite = |times: u64| -> Result<(), Failure> {
        for _ in 0..times * pages {
            let page = match hot {
                Some((hot_pages, hot_writes)) if chance.below(100) < hot_writes => {
                    chance.below(pages * hot_pages / 100)
                }
                Some((hot_pages, _)) => {
                    let first = pages * hot_pages / 100;
                    first + chance.below(pages - first)
                }
                None => chance.below(pages),
            };
            ftl.write_at(page * 512, &[2; 512], TAG)?;
        }
        Ok(())
    };
    overwrite(3)?;
    let before = ftl.stats();
    overwrite(3)?;
    let after = ftl.stats();
    let host = (after.host_pages - before.host_pages) as f64;
    let gc = (after.gc_pages - before.gc_pages) as f64 / host;
    let map = (after.map_pages - before.map_pages) as f64 / host;
    let kind = match hot {
        Some((pages, writes)) => format!("{writes} % of the writes on {pages} % of the pages"),
        None => "uniform".to_owned(),
    };
    let wear = ftl.wear();
    let (least, most) = wear.range();
    println!(
        "{} MiB, {:.1} % exported, {kind}: write amplification {:.2} (moved {gc:.2}, map \
            {map:.2}); erases {:.1} on average, {least} to {most}",
        part.geometry.data_bytes() >> 20,
        100.0 * ftl.size() as f64 / part.geometry.data_bytes() as f64,
        1.0 + gc + map,
        wear.mean(),
    );
    Ok(())
}

/// How many pages of JFTL's part a mount reads: full, after random overwrites, at many moments.
fn mount_reads(divisor: u32) -> Result<(), Failure> {
    let part = parts::JFTL.flawless().with_blocks(8192 / divisor);
    let options = NandOptions {
        record: false,
        ..NandOptions::new(part)
    };
    let nand = Arc::new(options.build());
    let layer = FtlOptions::default();
    let ftl = Ftl::create(nand.clone(), [1; 16], &layer, MountOptions::default())?;
    let pages = ftl.size() / 512;
    for page in 0..pages {
        ftl.write_at(page * 512, &[1; 512], TAG)?;
    }
    let mut chance = Chance(3);
    let (mut most, mut sum, moments) = (0, 0, 64);
    for _ in 0..moments {
        for _ in 0..pages / 97 {
            ftl.write_at(chance.below(pages) * 512, &[2; 512], TAG)?;
        }
        let report = Inspection::new(nand.clone())?.report;
        most = most.max(report.pages_read);
        sum += report.pages_read;
    }
    ftl.checkpoint()?;
    drop(ftl);
    let began = nand.rig().clock.now_ns();
    let clean = Ftl::mount(nand.clone(), MountOptions::default())?;
    let ms = (nand.rig().clock.now_ns() - began) as f64 / 1e6;
    println!(
        "mount of {} MiB, random overwrites: {} of {} pages read on average, {most} at most; after \
            a checkpoint {} in {ms:.0} ms of the part's time",
        part.geometry.data_bytes() >> 20,
        sum / moments,
        part.geometry.pages(),
        clean.mount_report().pages_read,
    );
    Ok(())
}

/// 64 GiB in pages of 8 KiB: a map of eight million pages, mounted after a checkpoint and as late
/// after it as can be.
fn mount_speed(divisor: u32) -> Result<(), Failure> {
    let geometry = NandGeometry {
        page_bytes: 8192,
        spare_bytes: 16,
        pages_per_block: 256,
        blocks: 32768 / divisor,
        planes: 1,
        bad_mark: 0,
    };
    let nand = Arc::new(Memory::new(geometry));
    let layer = FtlOptions::default();
    let ftl = Ftl::create(nand.clone(), [1; 16], &layer, MountOptions::default())?;
    let pages = ftl.size() / 8192;
    let chunk = vec![1; 256 * 8192];
    for at in (0..pages).step_by(256) {
        let len = (pages - at).min(256) * 8192;
        ftl.write_at(at * 8192, &chunk[..len as usize], TAG)?;
    }
    let mut chance = Chance(3);
    for when in ["after a checkpoint", "after random overwrites"] {
        ftl.checkpoint()?;
        if when != "after a checkpoint" {
            for _ in 0..pages / 150 {
                ftl.write_at(chance.below(pages) * 8192, &chunk[..8192], TAG)?;
            }
        }
        let began = processor_ns();
        let report = Inspection::new(nand.clone())?.report;
        println!(
            "mount of {} GiB {when}: {:.0} ms of the processor, {} of {} pages scanned",
            geometry.data_bytes() >> 30,
            (processor_ns() - began) as f64 / 1e6,
            report.pages_scanned,
            geometry.pages(),
        );
    }
    Ok(())
}

/// A small run, so that this program cannot rot.
#[cfg(test)]
mod tests {
    #[test]
    fn every_measurement_runs() {
        super::measure_all(16, 128, 1000).expect("parts without bad blocks");
    }
}
