//! Random legal requests against a model that knows nothing of records and cells, in memory and in
//! a file at once.

use proptest::prelude::*;

use super::*;
use crate::error::Op;
use crate::image::Image;
use crate::sim::{Fault, Rig};

const BLOCKS: u32 = SMALL.geometry.blocks;
const PAGES: u32 = SMALL.geometry.pages_per_block;

#[derive(Clone, Debug)]
enum Step {
    /// Programs the next page of a block, if there is one.
    Program {
        block: u32,
        content: u64,
        fails: bool,
    },
    Erase {
        block: u32,
        fails: bool,
    },
    MarkBad {
        block: u32,
    },
    Read {
        page: u32,
        fails: bool,
    },
    /// Opens the part again with the stored content.
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let fails = || prop::bool::weighted(0.03);
    prop_oneof![
        10 => (0..BLOCKS, any::<u64>(), fails())
            .prop_map(|(block, content, fails)| Step::Program { block, content, fails }),
        4 => (0..BLOCKS, fails()).prop_map(|(block, fails)| Step::Erase { block, fails }),
        1 => (0..BLOCKS).prop_map(|block| Step::MarkBad { block }),
        6 => (0..BLOCKS * PAGES, fails()).prop_map(|(page, fails)| Step::Read { page, fails }),
        1 => Just(Step::Restart),
    ]
}

/// The model's knowledge of a block: its pages in order, each with its content or lost.
#[derive(Clone, Default)]
struct Block {
    pages: Vec<Option<u64>>,
    /// A request on it has failed.
    failed: bool,
    bad: bool,
    erases: u32,
}

#[derive(Default)]
struct Model {
    blocks: [Block; BLOCKS as usize],
    programs: u64,
    reads: u64,
    erases: u64,
    marks: u64,
}

impl Model {
    /// Applies a step to the model as [`carry_out`] does to the part. Returns `None` if the step is
    /// not legal, else how it ends.
    fn apply(&mut self, step: &Step) -> Option<Result<(), NandError>> {
        let index = match *step {
            Step::Program { block, .. } | Step::Erase { block, .. } | Step::MarkBad { block } => {
                block
            }
            Step::Read { page, .. } => page / PAGES,
            Step::Restart => 0,
        };
        let block = &mut self.blocks[index as usize];
        let usable = !block.failed && !block.bad;
        match *step {
            Step::Program { content, fails, .. } => {
                if !usable || block.pages.len() == PAGES as usize {
                    return None;
                }
                let page = PageNo(index * PAGES + block.pages.len() as u32);
                block.pages.push((!fails).then_some(content));
                block.failed = fails;
                self.programs += u64::from(!fails);
                Some(if fails {
                    Err(NandError::ProgramFailed { page })
                } else {
                    Ok(())
                })
            }
            Step::Erase { fails, .. } => {
                if !usable {
                    return None;
                }
                block.erases += 1;
                block.failed = fails;
                if fails {
                    block.pages.fill(None);
                    let block = BlockAddr(index);
                    return Some(Err(NandError::EraseFailed { block }));
                }
                block.pages.clear();
                self.erases += 1;
                Some(Ok(()))
            }
            Step::MarkBad { .. } => {
                block.bad = true;
                self.marks += 1;
                Some(Ok(()))
            }
            Step::Read { page, fails } => {
                let lost = block.pages.get((page % PAGES) as usize) == Some(&None);
                if fails || lost {
                    let page = PageNo(page);
                    return Some(Err(NandError::Uncorrectable { page }));
                }
                self.reads += 1;
                Some(Ok(()))
            }
            Step::Restart => None,
        }
    }

    fn page(&self, page: u32) -> Option<Option<u64>> {
        let block = &self.blocks[(page / PAGES) as usize];
        block.pages.get((page % PAGES) as usize).copied()
    }
}

/// Carries out a step that the model found legal, and compares a read with the model.
fn carry_out<S: Store>(nand: &NandDev<S>, step: &Step, model: &Model) -> Result<(), NandError> {
    let inject = |op, fails: bool| {
        if fails {
            nand.inject(Fault::nth(op, 0));
        }
    };
    match *step {
        Step::Program {
            block,
            content,
            fails,
        } => {
            inject(Op::Write, fails);
            let next = model.blocks[block as usize].pages.len() as u32 - 1;
            program(nand, &SMALL, block * PAGES + next, content)
        }
        Step::Erase { block, fails } => {
            inject(Op::Erase, fails);
            nand.erase(BlockAddr(block), Cause::Gc)
        }
        Step::MarkBad { block } => nand.mark_bad(BlockAddr(block), Cause::Gc),
        Step::Read { page, fails } => {
            inject(Op::Read, fails);
            compare(nand, page, model)
        }
        Step::Restart => Ok(()),
    }
}

/// Reads a page and compares its content with the model.
fn compare(nand: &impl Nand, page: u32, model: &Model) -> Result<(), NandError> {
    let got = read(nand, page);
    let is_bad = model.blocks[(page / PAGES) as usize].bad;
    let mark = SMALL.geometry.bad_mark as usize;
    let mut spare_alone = vec![0; SMALL.geometry.spare_bytes as usize];
    let mut expected = match model.page(page) {
        None => (vec![0xff; 512], vec![0xff; 16]),
        Some(Some(n)) => content(&SMALL, n),
        Some(None) => {
            assert!(got.result.is_err(), "page {page} is lost");
            return got.result.map(drop);
        }
    };
    if is_bad && page.is_multiple_of(PAGES) {
        expected.1[mark] = 0;
    }
    match &got.result {
        Ok(corrected) => {
            assert_eq!(*corrected, Corrected::default());
            assert!(got.is(&expected), "page {page}");
            let read = nand.read_spare(PageNo(page), &mut spare_alone, TAG);
            assert_eq!((read, spare_alone), (Ok(Corrected::default()), expected.1));
        }
        Err(_) => assert!(
            !got.is(&expected),
            "page {page} came out right with an error"
        ),
    }
    got.result.map(drop)
}

/// Compares the whole part with the model.
fn compare_all(nand: &impl Nand, model: &Model) {
    for page in 0..BLOCKS * PAGES {
        let _ = compare(nand, page, model);
    }
    for (i, block) in (0..).zip(&model.blocks) {
        assert_eq!(nand.is_bad(BlockAddr(i)), Ok(block.bad), "block {i}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn parts_behave_as_the_model(steps in prop::collection::vec(step(), 1..120)) {
        let dir = directory();
        let path = dir.path().join("part");
        let mut sim = NandSim::new(SMALL);
        // With the same UUID, memory and file have the same bytes.
        let uuid = Image::to_bytes(&sim.image())[0x10..0x20].try_into().expect("16 bytes");
        let mut file = NandFile::options().create(&path, SMALL, uuid).expect("a file");
        let mut model = Model::default();
        let mut since_restart = Model::default();
        for step in &steps {
            if let Step::Restart = step {
                drop(file);
                file = NandFile::options().open(&path).expect("the file");
                sim = NandSim::from_image(&Rig::default(), sim.image()).expect("the image");
                since_restart = Model::default();
                continue;
            }
            let before = (model.programs, model.reads, model.erases, model.marks);
            let Some(expected) = model.apply(step) else {
                continue;
            };
            prop_assert_eq!(carry_out(&sim, step, &model), expected.clone(), "{:?}", step);
            prop_assert_eq!(carry_out(&file, step, &model), expected, "{:?}", step);
            since_restart.programs += model.programs - before.0;
            since_restart.reads += model.reads - before.1;
            since_restart.erases += model.erases - before.2;
            since_restart.marks += model.marks - before.3;
        }
        for (i, block) in (0..).zip(&model.blocks) {
            let state = sim.block(BlockAddr(i)).expect("memory");
            prop_assert_eq!(state.erases, block.erases);
            prop_assert_eq!(state.next_page as usize, block.pages.len());
            prop_assert_eq!(&file.block(BlockAddr(i)).expect("the file"), &state);
        }
        // A read of the spare area followed each good read.
        for (meter, clock) in [(sim.meter(), &sim.rig().clock), (file.meter(), &file.rig().clock)] {
            let count = meter.snapshot();
            let all = count.total();
            prop_assert_eq!(
                (all.writes, all.write_bytes),
                (since_restart.programs, since_restart.programs * 512)
            );
            prop_assert_eq!(
                (all.reads, all.read_bytes),
                (2 * since_restart.reads, since_restart.reads * 528)
            );
            prop_assert_eq!(count.erases(Cause::Gc), since_restart.erases);
            let ns = since_restart.programs * 126_400
                + since_restart.reads * (51_400 + 25_800)
                + since_restart.erases * 2_000_000
                + since_restart.marks * 100_800;
            prop_assert_eq!((count.total_busy_ns(), clock.now_ns()), (ns, ns));
        }
        compare_all(&sim, &model);
        compare_all(&file, &model);
        drop(file);
        prop_assert_eq!(Image::from_file(&path).expect("the file"), sim.image());
    }
}
