//! The worked examples of the Shortcut-JFS paper, to the byte.

use anyhow::{Context, Result};
use stetfs_format::InodeNo;
use stetfs_media::{Cause, Class, Tag};

use super::kind::Experiment;
use super::log_contents::{self, LogContents};
use super::report::{Report, Said, Table};
use super::setting::Setting;
use crate::system::{
    ADP_S, BLK, BLK_S, Bed, DIFF, EXT3, EXT3_1K, EXT3_4K, Measured, PCM, System, Volume,
};
use crate::workload::{Content, Durable, Session, Workload};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "shortcut-example",
    title: "the worked examples of the Shortcut-JFS paper: bytes of one write, to the byte",
    paper: "Lee, Yoo, Jang, Bahn, MSST 2012, Figures 1 and 2",
    scale: 1.0,
    has_real_time: false,
    is_small: true,
    run: super::kind::Run::Own(run),
};

const SYSTEMS: [System; 5] = [EXT3, BLK, DIFF, BLK_S, ADP_S];

/// One durable write into a file of some blocks that are home.
#[derive(Clone, Copy)]
struct OneWrite {
    what: &'static str,
    block: u64,
    blocks: u64,
    offset: u64,
    len: usize,
    seed: u64,
}

impl OneWrite {
    fn write(&self, session: &mut Session<'_>, pass: u64, at: u64, len: usize) -> Result<InodeNo> {
        let ino = match pass {
            0 => session.create(session.root(), "file")?,
            _ => session.open(session.root(), "file")?,
        };
        let mut content = Content::new(self.seed, (self.blocks * self.block) as usize);
        session.write(ino, at, content.piece(pass, len))?;
        Ok(ino)
    }
}

impl Workload for OneWrite {
    fn name(&self) -> String {
        self.what.to_owned()
    }

    fn prepare(&self, session: &mut Session<'_>) -> Result<()> {
        let ino = self.write(session, 0, 0, (self.blocks * self.block) as usize)?;
        session.close(ino)?;
        session.sync()
    }

    fn run(&self, session: &mut Session<'_>) -> Result<()> {
        let ino = self.write(session, 1, self.offset, self.len)?;
        session.close(ino)
    }
}

/// Bytes that one write costs.
struct Bytes {
    log: LogContents,
    data_home: u64,
    data_checkpoint: u64,
    metadata_checkpoint: u64,
    run: Measured,
}

impl Bytes {
    fn data(&self) -> u64 {
        self.log.data_bytes + self.data_home + self.data_checkpoint
    }
}

fn measure(
    setting: &Setting<'_>,
    system: System,
    volume: &Volume,
    work: &OneWrite,
) -> Result<Bytes> {
    let run = setting.measure((system, PCM), volume, 64, work, Durable::EachWrite)?;
    let of = |class, cause| run.device.of(Tag::new(class, cause)).write_bytes;
    let log = if system == EXT3 {
        // JBD2's blocks are counted one by one.
        let logged = run.device.by_cause(Cause::Log).write_bytes;
        let records = of(Class::Journal, Cause::Log) + of(Class::Journal, Cause::CommitRecord);
        let data_bytes = of(Class::Data, Cause::Log);
        LogContents {
            transactions: run.commits,
            data_bytes,
            metadata_bytes: logged - data_bytes - of(Class::Journal, Cause::Log),
            header_bytes: records,
        }
    } else {
        logged(system, volume, work)?
    };
    let data_checkpoint = of(Class::Data, Cause::Checkpoint);
    Ok(Bytes {
        log,
        data_home: of(Class::Data, Cause::Home),
        data_checkpoint,
        metadata_checkpoint: run.device.by_cause(Cause::Checkpoint).write_bytes - data_checkpoint,
        run,
    })
}

/// Repeats the write, and reads the log before it is checkpointed.
fn logged(system: System, volume: &Volume, work: &OneWrite) -> Result<LogContents> {
    let mut bed = Bed::new(system, PCM, volume, 64)?;
    work.prepare(&mut Session::new(
        bed.fs(),
        bed.time(),
        Durable::EXT3,
        &|_, _| {},
    ))?;
    bed.remount()?;
    work.run(&mut Session::new(
        bed.fs(),
        bed.time(),
        Durable::EachWrite,
        &|_, _| {},
    ))?;
    let image = bed.image().context("a simulated medium")?;
    log_contents::read(&image)
}

fn run(setting: &Setting<'_>) -> Result<Report> {
    let mut report = Report::new(&EXPERIMENT, setting);
    report.setup = vec![
        (
            "volumes",
            "ext3, blocks of 1 KiB and of 4 KiB, inodes of 256 bytes".to_owned(),
        ),
        (
            "write",
            "one, durable when it returns, into blocks that are home; until it is home again"
                .to_owned(),
        ),
        (
            "medium",
            "simulated PCM; ext3 through a block layer".to_owned(),
        ),
    ];
    let seed = setting.seed;
    let figure_2 = OneWrite {
        what: "800 bytes: 600 in one block of 1 KiB, 200 in the next (Figure 2)",
        block: 1024,
        blocks: 2,
        offset: 424,
        len: 800,
        seed,
    };
    // A third of a block, in whole words of memory: 1,368 bytes of 4,096.
    let figure_1 = OneWrite {
        what: "one and a third blocks of 4 KiB (Figure 1)",
        block: 4096,
        blocks: 2,
        offset: 0,
        len: 4096 + 1368,
        seed,
    };
    let small = Volume::make(EXT3_1K, 16, 1)?;
    let large = Volume::make(EXT3_4K, 32, 4)?;
    let all = |volume: &Volume, work: &OneWrite| -> Result<Vec<Bytes>> {
        let one = |system| measure(setting, system, volume, work);
        SYSTEMS.into_iter().map(one).collect()
    };
    let second = all(&small, &figure_2)?;
    let first = all(&large, &figure_1)?;
    check(&mut report, &second, &first);
    for (name, work, found) in [("figure2", figure_2, second), ("figure1", figure_1, first)] {
        show(&mut report, name, &work, &found);
        report.runs.extend(found.into_iter().map(|bytes| bytes.run));
    }
    report.notes.push(
        "The paper counts the example's checkpoint of ext3 (two of the four blocks) \
        and leaves out that of the 200 bytes, which Figure 1 counts: 1,424 bytes by that \
        way."
            .to_owned(),
    );
    Ok(report)
}

fn check(report: &mut Report, figure_2: &[Bytes], figure_1: &[Bytes]) {
    let ext3 = &figure_2[0];
    let ours = &figure_2[SYSTEMS.len() - 1];
    let first_copies = ours.log.data_bytes + ours.data_home;
    let mut exact = |claim: &str, paper: &str, found: u64, expected: u64| {
        let found_text = format!("{found} bytes");
        let said = Said::figure(paper, expected as f64).within(0.0);
        report.compare(claim, said, found as f64, found_text);
    };
    exact(
        "Figure 2: data that adp-s logs or writes in place",
        "1.2 KB: a block and 200 bytes",
        first_copies,
        1024 + 200,
    );
    exact(
        "Figure 2: the same with the checkpoint of the 200 bytes",
        "not counted",
        ours.data(),
        1024 + 2 * 200,
    );
    exact(
        "Figure 2: data that ext3 logs and checkpoints",
        "4 KB: four blocks",
        ext3.data(),
        4 * 1024,
    );
    let ours = &figure_1[SYSTEMS.len() - 1];
    exact(
        "Figure 1: data that adp-s writes",
        "1 2/3 blocks",
        ours.data(),
        4096 + 2 * 1368,
    );
    exact(
        "Figure 1: data that ext3 writes",
        "4 blocks",
        figure_1[0].data(),
        4 * 4096,
    );
}

fn show(report: &mut Report, name: &str, work: &OneWrite, found: &[Bytes]) {
    let mut table = Table::new(
        format!("{}: bytes written", work.what),
        [
            "system",
            "data logged",
            "data in place",
            "data checkpointed",
            "all data",
            "metadata logged",
            "log headers",
            "metadata checkpointed",
            "all",
        ],
    );
    for (system, bytes) in SYSTEMS.into_iter().zip(found) {
        let cells = [
            bytes.log.data_bytes,
            bytes.data_home,
            bytes.data_checkpoint,
            bytes.data(),
            bytes.log.metadata_bytes,
            bytes.log.header_bytes,
            bytes.metadata_checkpoint,
            bytes.run.written(),
        ];
        table.row(system.name, cells.map(|c| c.to_string()));
    }
    let block = work.block as f64;
    let (paper_ours, paper_ext3) = match name {
        "figure2" => (1224.0, 4.0 * block),
        _ => (block * 5.0 / 3.0, 4.0 * block),
    };
    table.lines = vec![
        ("the paper, Shortcut-JFS, data".to_owned(), paper_ours),
        ("the paper, ext3, data".to_owned(), paper_ext3),
    ];
    report.tables.push(table);
}
