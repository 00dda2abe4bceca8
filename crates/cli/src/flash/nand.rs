//! `stetfs nand`: makes and inspects a flash translation layer on a NAND part, a simulated one in a
//! file or a real one behind `/dev/mtdN`. All subcommands but `create` only read; `export` is in
//! `export.rs`.

use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use stetfs_format::width::{must_fit, must_fit_u32, nearest_f64, u32_as_usize, u64_as_usize};
use stetfs_ftl::{Ftl, FtlError, FtlOptions, Inspection, MountOptions, Wear};
use stetfs_media::nand::{BlockAddr, MtdNand, Nand, NandError, NandFile, parts};
use stetfs_media::{Class, Tag};

use crate::args::{NandCommand, NandCreate, NandFileArgs};
use crate::failure::{Explain, Failure, Result};
use crate::holds;
use crate::identity;
use crate::output;
use crate::size::{Size, rounded_down};

/// Number of lines of the histogram.
const BINS: u32 = 10;
/// Characters of the histogram's longest line.
const BAR: u32 = 50;

pub(crate) fn run(args: &crate::args::Nand) -> Result<()> {
    match &args.command {
        NandCommand::Create(args) => create(args),
        NandCommand::Info(args) => info(args),
        NandCommand::Check(args) => check(args),
        NandCommand::Wear(args) => wear(args),
        NandCommand::Export(_) => unreachable!("has a log of its own, see main.rs"),
    }
}

/// What is printed of a part. Sizes are bytes.
#[derive(Debug, Serialize)]
struct PartInfo {
    /// `simulated`, in a file; `mtd`, a real one.
    kind: &'static str,
    size: u64,
    page_bytes: u32,
    spare_bytes: u32,
    pages_per_block: u32,
    blocks: u32,
    planes: u32,
    /// Wrong bits that are corrected in each codeword.
    corrected_bits: u32,
    codeword_bytes: u32,
    /// None when it never wears out, or when only its datasheet says.
    endurance_erases: Option<u32>,
}

#[derive(Debug, Serialize)]
struct LayerInfo {
    uuid: String,
    capacity: u64,
    sector_size: u32,
    mapped: u64,
    shared_pages: u32,
    mounts: u32,
    host_pages: u64,
    gc_pages: u64,
    map_pages: u64,
    remapped_pages: u64,
    write_amplification: Option<f64>,
    good_blocks: u32,
    bad_blocks: u32,
    /// Number of blocks that may still go bad before nothing can be written any more.
    spare_blocks: u32,
    /// Number of pages that a mount would read now.
    mount_reads: u64,
}

#[derive(Debug, Serialize)]
struct FileInfo {
    file: String,
    part: PartInfo,
    layer: Option<LayerInfo>,
}

#[derive(Debug, Serialize)]
struct CheckInfo {
    file: String,
    clean: bool,
    pages: u64,
    remapped: u64,
    weak: u64,
    /// Numbers of logical pages that cannot be read.
    unreadable: Vec<u32>,
    lost: Vec<u32>,
    foreign: Vec<u32>,
}

#[derive(Debug, Serialize)]
struct WearInfo {
    file: String,
    blocks: u32,
    bad_blocks: u32,
    spare_blocks: u32,
    least: u32,
    most: u32,
    mean: f64,
    deviation: f64,
    /// Erases of the most erased block that holds the layer's anchors.
    anchor_most: u32,
    histogram: Vec<Bin>,
    endurance_erases: Option<u32>,
    write_amplification: Option<f64>,
    written: u64,
    /// Bytes that can be written in the part's whole life, and those that are left. None if it
    /// never wears out or nothing has been written.
    life: Option<u64>,
    life_left: Option<u64>,
}

/// Blocks that were erased from `from` to `to` times.
#[derive(Debug, Serialize)]
struct Bin {
    from: u32,
    to: u32,
    blocks: u32,
}

/// A part that was opened.
struct Part {
    nand: Arc<dyn Nand>,
    kind: &'static str,
    /// None when it never wears out, or when only its datasheet says.
    endurance_erases: Option<u32>,
}

/// [`PartInfo::kind`] of a real part.
const MTD: &str = "mtd";

impl Part {
    fn open(file: &Path) -> Result<Self> {
        if MtdNand::is_at(file) {
            return Ok(Self::real(MtdNand::open(file, true)?));
        }
        if file.metadata().is_ok_and(|m| m.is_file()) && !NandFile::is_at(file) {
            let holds = holds::in_words(file)?;
            let what = format!("{} is not a NAND part: it holds {holds}", file.display());
            return Err(Failure::new(what).advise("stetfs nand create makes one"));
        }
        let nand = NandFile::options().open(file)?;
        let erases = nand.part().wear.endurance_erases;
        Ok(Self {
            nand: Arc::new(nand),
            kind: "simulated",
            endurance_erases: (erases != u32::MAX).then_some(erases),
        })
    }

    fn real(nand: MtdNand) -> Self {
        Self {
            nand: Arc::new(nand),
            kind: MTD,
            endurance_erases: None,
        }
    }
}

fn create(args: &NandCreate) -> Result<()> {
    let file = &args.file;
    let name = || file.display().to_string();
    let options = FtlOptions {
        over_provisioning_percent: args.over_provisioning,
        ..FtlOptions::default()
    };
    let is_real = MtdNand::is_at(file);
    let nand = if is_real {
        blank_part(args)?
    } else {
        holds::check_new(file)?;
        check_not_there(file)?;
        new_file(args)?
    };
    match Ftl::create(
        nand,
        identity::random()?.0,
        &options,
        MountOptions::default(),
    ) {
        Ok(ftl) => drop(ftl),
        Err(e) => {
            if !is_real {
                // This command made the file, and it is of no use.
                let _ = std::fs::remove_file(file);
            }
            return Err(e).during(name);
        }
    }
    show(&args.file, args.json)
}

/// Fails if there is a file already. A simulated part is made in a new file, so nothing is
/// overwritten.
fn check_not_there(file: &Path) -> Result<()> {
    let Ok(meta) = file.metadata() else {
        return Ok(());
    };
    let shown = file.display();
    if !meta.is_file() {
        let what = format!("{shown} exists, but is neither a file nor an MTD device");
        return Err(Failure::new(what));
    }
    let holds = holds::in_words(file)?;
    Err(
        Failure::new(format!("{shown} exists already, and holds {holds}"))
            .advise("give another name, or remove it first"),
    )
}

fn new_file(args: &NandCreate) -> Result<Arc<dyn Nand>> {
    let mut part = match args.part.as_deref() {
        Some("mlc") => parts::MLC,
        _ => parts::JFTL,
    };
    if args.flawless {
        part = part.flawless();
    }
    part = part.with_seed(args.seed.unwrap_or(1));
    if let Some(size) = args.size {
        let geometry = &part.geometry;
        let block = geometry.data_bytes() / u64::from(geometry.blocks);
        let plane = block * u64::from(geometry.planes);
        let blocks = size.0 / plane * u64::from(geometry.planes);
        let pages = blocks.saturating_mul(geometry.pages_per_block.into());
        if pages == 0 || pages > u32::MAX.into() {
            let what = format!(
                "{size} is not a possible size for a part with erase blocks of {}",
                Size(block)
            );
            return Err(Failure::new(what).exit(2));
        }
        part = part.with_blocks(must_fit(blocks));
    }
    let nand = NandFile::options().create(&args.file, part, identity::random()?.0);
    Ok(Arc::new(nand.map_err(Failure::from)?))
}

/// Opens a real part. Fails if it holds something, unless --force gives that up.
fn blank_part(args: &NandCreate) -> Result<Arc<dyn Nand>> {
    let shown = args.file.display();
    if args.part.is_some() || args.size.is_some() || args.flawless || args.seed.is_some() {
        let what = format!(
            "{shown} is a real part: --part, --size, --flawless and --seed are for simulated ones"
        );
        return Err(Failure::new(what).exit(2));
    }
    let nand = MtdNand::open(&args.file, false)?;
    if !args.force && !is_blank(&nand)? {
        return Err(Failure::new(format!("{shown} holds something"))
            .advise("--force makes a layer over it; all that it holds is lost"));
    }
    Ok(Arc::new(nand))
}

/// True if the first page of every good block is erased.
fn is_blank(nand: &MtdNand) -> Result<bool> {
    let geometry = nand.geometry();
    let mut data = vec![0; u32_as_usize(geometry.page_bytes)];
    let mut spare = vec![0; u32_as_usize(geometry.spare_bytes)];
    let tag = Tag::read(Class::Data);
    for block in (0..geometry.blocks).map(BlockAddr) {
        if nand.is_bad(block)? {
            continue;
        }
        let is_erased = match nand.read(geometry.page_at(block, 0), &mut data, &mut spare, tag) {
            Ok(_) => data.iter().chain(&spare).all(|byte| *byte == 0xff),
            Err(NandError::Uncorrectable { .. }) => false,
            Err(e) => return Err(e.into()),
        };
        if !is_erased {
            return Ok(false);
        }
    }
    Ok(true)
}

fn inspect(file: &Path, part: &Part) -> Result<Inspection> {
    Inspection::new(part.nand.clone()).during(|| file.display().to_string())
}

fn info(args: &NandFileArgs) -> Result<()> {
    show(&args.file, args.json)
}

fn show(file: &Path, json: bool) -> Result<()> {
    let part = Part::open(file)?;
    let layer = match Inspection::new(part.nand.clone()) {
        Ok(found) => Some(layer_info(&part, &found)),
        Err(FtlError::NotFormatted) => None,
        Err(e) => return Err(e).during(|| file.display().to_string()),
    };
    let info = FileInfo {
        file: file.display().to_string(),
        part: part_info(&part),
        layer,
    };
    if json {
        return output::json(&info);
    }
    output::line(in_words(&info))
}

fn part_info(part: &Part) -> PartInfo {
    let (geometry, ecc) = (part.nand.geometry(), part.nand.ecc());
    PartInfo {
        kind: part.kind,
        size: geometry.data_bytes(),
        page_bytes: geometry.page_bytes,
        spare_bytes: geometry.spare_bytes,
        pages_per_block: geometry.pages_per_block,
        blocks: geometry.blocks,
        planes: geometry.planes,
        corrected_bits: ecc.strength_bits,
        codeword_bytes: ecc.codeword_bytes,
        endurance_erases: part.endurance_erases,
    }
}

fn layer_info(part: &Part, found: &Inspection) -> LayerInfo {
    let (info, wear) = (found.info(), found.wear());
    let page_bytes = part.nand.geometry().page_bytes;
    let bytes = |pages: u32| u64::from(pages) * u64::from(page_bytes);
    LayerInfo {
        uuid: uuid_text(&info.uuid),
        capacity: bytes(info.logical_pages),
        sector_size: page_bytes,
        mapped: bytes(info.mapped_pages),
        shared_pages: info.shared_pages,
        mounts: info.stats.mounts,
        host_pages: info.stats.host_pages,
        gc_pages: info.stats.gc_pages,
        map_pages: info.stats.map_pages,
        remapped_pages: info.stats.remapped_pages,
        write_amplification: info.stats.write_amplification(),
        good_blocks: wear.good_blocks,
        bad_blocks: wear.bad_blocks,
        spare_blocks: wear.spare_blocks,
        mount_reads: found.report.pages_read,
    }
}

fn uuid_text(uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    let groups = [
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..],
    ];
    groups.join("-")
}

fn in_words(info: &FileInfo) -> String {
    let FileInfo { file, part, layer } = info;
    let mut lines = vec![format!(
        "{file}: NAND part of {}, {} erase blocks of {} pages of {} + {} bytes",
        Size(part.size),
        part.blocks,
        part.pages_per_block,
        part.page_bytes,
        part.spare_bytes
    )];
    let endurance = match part.endurance_erases {
        Some(n) => format!("{n} erases"),
        None if part.kind == MTD => "as its datasheet says".to_owned(),
        None => "no end".to_owned(),
    };
    lines.push(format!(
        "{} wrong bits in {} bytes are corrected; endurance {endurance}",
        part.corrected_bits, part.codeword_bytes
    ));
    let Some(layer) = layer else {
        lines.push("no flash translation layer".to_owned());
        return lines.join("\n");
    };
    lines.push(format!(
        "flash translation layer {}: {} in sectors of {} bytes, {} in use",
        layer.uuid,
        Size(layer.capacity),
        layer.sector_size,
        Size(layer.mapped)
    ));
    lines.push(format!(
        "{} blocks are good, {} bad, {} more may go bad",
        layer.good_blocks, layer.bad_blocks, layer.spare_blocks
    ));
    lines.push(format!(
        "pages programmed: {} for writes, {} moved, {} of the map{}; {} remapped instead",
        layer.host_pages,
        layer.gc_pages,
        layer.map_pages,
        amplification(layer.write_amplification),
        layer.remapped_pages
    ));
    lines.push(format!(
        "mounted {} times; a mount reads {} pages",
        layer.mounts, layer.mount_reads
    ));
    lines.join("\n")
}

fn amplification(amplification: Option<f64>) -> String {
    amplification.map_or(String::new(), |n| format!(" (write amplification {n:.2})"))
}

fn check(args: &NandFileArgs) -> Result<()> {
    let part = Part::open(&args.file)?;
    let file = args.file.display().to_string();
    let mut found = inspect(&args.file, &part)?;
    let check = found.check().during(|| file.clone())?;
    let info = CheckInfo {
        clean: check.is_clean(),
        pages: check.pages,
        remapped: check.remapped,
        weak: check.weak,
        unreadable: check.unreadable,
        lost: check.lost,
        foreign: check.foreign,
        file,
    };
    if args.json {
        output::json(&info)?;
        return if info.clean {
            Ok(())
        } else {
            Err(Failure::said())
        };
    }
    output::line(format_args!(
        "{}: the map is sound; {} pages read, {} of them remapped, {} should be moved soon",
        info.file, info.pages, info.remapped, info.weak
    ))?;
    let lists = [
        ("cannot be read", &info.unreadable),
        ("was lost earlier", &info.lost),
        ("holds something else", &info.foreign),
    ];
    for (what, list) in lists {
        for page in list {
            output::line(format_args!("logical page {page} {what}"))?;
        }
    }
    if info.clean {
        return Ok(());
    }
    let damaged = info.unreadable.len() + info.lost.len() + info.foreign.len();
    Err(Failure::new(format!(
        "{}: {damaged} logical pages are damaged",
        info.file
    )))
}

fn wear(args: &NandFileArgs) -> Result<()> {
    let part = Part::open(&args.file)?;
    let found = inspect(&args.file, &part)?;
    let info = wear_info(args.file.display().to_string(), &part, &found);
    if args.json {
        return output::json(&info);
    }
    output::line(wear_in_words(&info))
}

fn wear_info(file: String, part: &Part, found: &Inspection) -> WearInfo {
    let (wear, stats) = (found.wear(), found.info().stats);
    let (least, most) = wear.range();
    let geometry = part.nand.geometry();
    let block_bytes = geometry.data_bytes() / u64::from(geometry.blocks);
    let endurance_erases = part.endurance_erases;
    let write_amplification = stats.write_amplification();
    // The bytes that the blocks can take, less those that programs add to what is written.
    let life = |used: bool| {
        let erases = wear.erases.iter().map(|n| {
            u64::from(
                endurance_erases
                    .unwrap_or(0)
                    .saturating_sub(if used { *n } else { 0 }),
            )
        });
        let bytes = nearest_f64(erases.sum::<u64>()) * nearest_f64(block_bytes);
        endurance_erases
            .and(write_amplification)
            .map(|wa| rounded_down(bytes / wa))
    };
    WearInfo {
        file,
        blocks: must_fit_u32(wear.erases.len()),
        bad_blocks: wear.bad_blocks,
        spare_blocks: wear.spare_blocks,
        least,
        most,
        mean: wear.mean(),
        deviation: wear.deviation(),
        anchor_most: wear.anchor_erases.iter().max().copied().unwrap_or(0),
        histogram: histogram(&wear),
        endurance_erases,
        write_amplification,
        written: stats.host_pages * u64::from(geometry.page_bytes),
        life: life(false),
        life_left: life(true),
    }
}

/// Counts blocks by their erases, in bins of the same width.
fn histogram(wear: &Wear) -> Vec<Bin> {
    let (least, most) = wear.range();
    let width = ((most - least) / BINS + 1).max(1);
    let mut bins = Vec::new();
    let mut from = least;
    while from <= most {
        let to = from.saturating_add(width - 1).min(most);
        let is_in = |n: &&u32| (from..=to).contains(*n);
        bins.push(Bin {
            from,
            to,
            blocks: must_fit_u32(wear.erases.iter().filter(is_in).count()),
        });
        let Some(next) = to.checked_add(1) else {
            break;
        };
        from = next;
    }
    bins
}

fn wear_in_words(info: &WearInfo) -> String {
    let mut lines = vec![format!(
        "{}: {} erase blocks, erased {:.1} times on average, from {} to {} (deviation {:.1}); {} \
            bad, {} more may go bad",
        info.file,
        info.blocks,
        info.mean,
        info.least,
        info.most,
        info.deviation,
        info.bad_blocks,
        info.spare_blocks
    )];
    let most = info
        .histogram
        .iter()
        .map(|bin| bin.blocks)
        .max()
        .unwrap_or(0)
        .max(1);
    let width = info.most.to_string().len();
    for bin in &info.histogram {
        let bar = "#".repeat(u64_as_usize(
            u64::from(bin.blocks) * u64::from(BAR) / u64::from(most),
        ));
        let line = format!(
            "{:>width$} - {:>width$} {:>8} {bar}",
            bin.from, bin.to, bin.blocks
        );
        lines.push(line.trim_end().to_owned());
    }
    let written = format!(
        "written {}{}",
        Size(info.written),
        amplification(info.write_amplification)
    );
    let life = match (info.endurance_erases, info.life, info.life_left) {
        (None, ..) => "the part never wears out".to_owned(),
        (Some(n), Some(life), Some(left)) => format!(
            "at {n} erases a block, {} can be written in all, {} are left",
            Size(life),
            Size(left)
        ),
        (Some(n), ..) => {
            format!("{n} erases a block; too little was written to estimate how much more can be")
        }
    };
    lines.push(format!("{written}; {life}"));
    lines.join("\n")
}
