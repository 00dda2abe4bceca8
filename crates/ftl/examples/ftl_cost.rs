//! What the layer costs: `ftl_cost`. Time of the processor for a write, a read, a remap and a mount, on a part that is nothing but
//! memory; write amplification with the device full, by how much of the part that is; and what a mount of a 128 MiB part reads.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use stetfs_ftl::{Ftl, FtlError, FtlOptions, Inspection, MountOptions};
use stetfs_media::nand::{
    BlockAddr, Corrected, Nand, NandEcc, NandError, NandGeometry, NandOptions, PageNo, parts,
};
use stetfs_media::{BlockDev, Cause, Class, JournalCopy, MediaError, Meter, RemapPair, Tag};

const TAG: Tag = Tag::new(Class::Data, Cause::Home);

/// A part that keeps pages in memory and does nothing else: no checks, no states, no time.
struct Memory {
    geometry: NandGeometry,
    pages: Vec<Mutex<Box<[u8]>>>,
    /// Whether data is kept, or only the spare area: enough for a large part of which nothing is read.
    keep: bool,
    meter: Meter,
}

impl Memory {
    fn new(geometry: NandGeometry) -> Self {
        Self {
            geometry,
            pages: (0..geometry.pages()).map(|_| Mutex::default()).collect(),
            keep: true,
            meter: Meter::new(),
        }
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
        _tag: Tag,
    ) -> Result<Corrected, NandError> {
        let cells = self.pages[page.0 as usize].lock();
        if cells.is_empty() {
            data.fill(0xff);
            spare.fill(0xff);
        } else {
            data.copy_from_slice(&cells[..data.len()]);
            spare.copy_from_slice(&cells[data.len()..]);
        }
        Ok(Corrected::default())
    }

    fn read_spare(&self, page: PageNo, spare: &mut [u8], tag: Tag) -> Result<Corrected, NandError> {
        let mut data = vec![0; self.geometry.page_bytes as usize];
        self.read(page, &mut data, spare, tag)
    }

    fn program(&self, page: PageNo, data: &[u8], spare: &[u8], _tag: Tag) -> Result<(), NandError> {
        let mut cells = self.pages[page.0 as usize].lock();
        if cells.is_empty() {
            *cells = vec![0; self.geometry.cell_bytes()].into();
        }
        if self.keep {
            cells[..data.len()].copy_from_slice(data);
        }
        cells[data.len()..].copy_from_slice(spare);
        Ok(())
    }

    fn erase(&self, block: BlockAddr, _cause: Cause) -> Result<(), NandError> {
        // The memory is kept, so that its allocation is not what is measured; an erased page is told by its spare area.
        for index in 0..self.geometry.pages_per_block {
            let page = self.geometry.page_at(block, index);
            let mut cells = self.pages[page.0 as usize].lock();
            let from = cells
                .len()
                .saturating_sub(self.geometry.spare_bytes as usize);
            cells[from..].fill(0xff);
        }
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
enum Failure {
    Layer(FtlError),
    Request(MediaError),
}

impl From<FtlError> for Failure {
    fn from(e: FtlError) -> Self {
        Self::Layer(e)
    }
}

impl From<MediaError> for Failure {
    fn from(e: MediaError) -> Self {
        Self::Request(e)
    }
}

fn main() {
    if let Err(e) = measure_all(1, 2_000_000) {
        eprintln!("{e:?}");
        std::process::exit(1);
    }
}

/// On parts smaller by a divisor, with so many requests.
fn measure_all(divisor: u32, requests: u64) -> Result<(), Failure> {
    speed(divisor, requests)?;
    for share in [80, 90] {
        for hot in [None, Some((20, 80))] {
            amplification(divisor, share, hot)?;
        }
    }
    mount_reads(divisor)?;
    mount_speed(divisor)
}

fn ns_each(began: Instant, count: u64) -> f64 {
    began.elapsed().as_nanos() as f64 / count as f64
}

/// Pages of 4 KiB in memory.
fn speed(divisor: u32, requests: u64) -> Result<(), Failure> {
    let geometry = NandGeometry {
        page_bytes: 4096,
        spare_bytes: 64,
        pages_per_block: 64,
        blocks: 4096 / divisor,
        planes: 1,
        bad_mark: 0,
    };
    let options = FtlOptions {
        over_provisioning_percent: 20,
        ..FtlOptions::default()
    };
    let nand = Arc::new(Memory::new(geometry));
    let ftl = Ftl::create(nand, [1; 16], &options, MountOptions::default())?;
    let page_bytes = u64::from(geometry.page_bytes);
    let pages = ftl.size() / page_bytes;
    let mut data = vec![7; page_bytes as usize];
    for page in 0..pages {
        ftl.write_at(page * page_bytes, &data, TAG)?;
    }
    let mut chance = Chance(1);
    let began = Instant::now();
    for _ in 0..requests {
        ftl.write_at(chance.below(pages) * page_bytes, &data, TAG)?;
    }
    let write_ns = ns_each(began, requests);
    let began = Instant::now();
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
        let began = Instant::now();
        remap.remap(&pairs, JournalCopy::Released)?;
        remap_ns += began.elapsed().as_nanos();
    }
    println!(
        "4 KiB in memory, {} MiB: write {write_ns:.0} ns, read {read_ns:.0} ns, remap of 256 pairs {:.1} us; {:.2} pages programmed a write",
        geometry.data_bytes() >> 20,
        remap_ns as f64 / 1e3 / rounds as f64,
        ftl.stats().write_amplification().unwrap_or(0.0),
    );
    Ok(())
}

/// JFTL's part, with what is exported being that share of all of it, overwritten at random; with hot data, a share of the
/// pages gets a share of the writes.
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
        "128 MiB, {:.1} % exported, {kind}: write amplification {:.2} (moved {gc:.2}, map {map:.2}); erases {:.1} on average, {least} to {most}",
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
        "mount of 128 MiB, random overwrites: {} of {} pages read on average, {most} at most; after a checkpoint {} in {ms:.0} ms of the part's time",
        sum / moments,
        part.geometry.pages(),
        clean.mount_report().pages_read,
    );
    Ok(())
}

/// A map as large as that of 64 GiB: pages of 8 KiB, of which only the layer's own keep their data.
fn mount_speed(divisor: u32) -> Result<(), Failure> {
    let geometry = NandGeometry {
        page_bytes: 512,
        spare_bytes: 16,
        pages_per_block: 256,
        blocks: 4096 / divisor,
        planes: 1,
        bad_mark: 0,
    };
    let nand = Arc::new(Memory::new(geometry));
    let layer = FtlOptions::default();
    let ftl = Ftl::create(nand.clone(), [1; 16], &layer, MountOptions::default())?;
    let pages = ftl.size() / 512;
    for page in 0..pages {
        ftl.write_at(page * 512, &[1; 512], TAG)?;
    }
    drop(ftl);
    let began = Instant::now();
    let ftl = Ftl::mount(nand, MountOptions::default())?;
    println!(
        "mount of {} pages: {:.0} ms, {} pages read",
        geometry.pages(),
        began.elapsed().as_secs_f64() * 1e3,
        ftl.mount_report().pages_read
    );
    Ok(())
}

/// A small run, so that this program cannot rot.
#[cfg(test)]
mod tests {
    #[test]
    fn every_measurement_runs() {
        super::measure_all(32, 2000).expect("parts without bad blocks");
    }
}
