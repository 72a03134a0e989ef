//! Traces made by rule. Chunks are those of 256 tokens that LMCache makes: what a chunk is depends on all before it.

use std::collections::{HashMap, VecDeque};

use crate::random::{Random, Zipf};
use crate::trace::Trace;

/// The same for the same number of requests: first those like traffic that is expected, then those made to be hard.
pub(crate) fn all(requests: usize) -> Vec<Trace> {
    [chat, rag, scan, one_off, shift, agentic, cycle, scan_and_return]
        .map(|make| make(requests))
        .into()
}

/// Gives out the numbers of chunks that nobody asked for before.
#[derive(Default)]
struct Fresh(u32);

impl Fresh {
    fn chunks(&mut self, count: u64) -> Vec<u32> {
        let first = self.0;
        self.0 += count as u32;
        (first..self.0).collect()
    }

    /// So many prompts of so many chunks.
    fn prompts(&mut self, count: u64, chunks: u64) -> Vec<Vec<u32>> {
        (0..count).map(|_| self.chunks(chunks)).collect()
    }
}

/// People who talk to an assistant of one of several tenants.
struct Chat {
    tenants: u64,
    /// Chunks of a tenant's system prompt, least and most.
    system: (u64, u64),
    /// Sessions at a time.
    sessions: u64,
    /// Chunks of a question with the answer before it.
    turn: (u64, u64),
    /// A session ends after a turn once in so many times.
    turns: u64,
    /// A session ends when it has more chunks.
    longest: usize,
    /// Every second turn is one of a session that was among the last so many.
    recent: usize,
}

struct Talk {
    shape: Chat,
    popularity: Zipf,
    systems: Vec<Vec<u32>>,
    sessions: Vec<Vec<u32>>,
    recent: VecDeque<usize>,
}

impl Talk {
    fn new(shape: Chat, random: &mut Random, fresh: &mut Fresh) -> Self {
        let system = |_| fresh.chunks(random.within(shape.system));
        let systems = (0..shape.tenants).map(system).collect();
        let (popularity, recent) = (Zipf::new(shape.tenants), VecDeque::new());
        let mut talk = Self { shape, popularity, systems, sessions: Vec::new(), recent };
        talk.sessions = (0..talk.shape.sessions).map(|_| talk.new_session(random)).collect();
        talk
    }

    fn new_session(&self, random: &mut Random) -> Vec<u32> {
        self.systems[self.popularity.rank(random)].clone()
    }

    /// The prompt of the next turn of some session.
    fn next(&mut self, random: &mut Random, fresh: &mut Fresh) -> Vec<u32> {
        let recent = self.recent.len() as u64;
        let which = match recent > 0 && random.once_in(2) {
            true => self.recent[random.below(recent) as usize],
            false => random.below(self.sessions.len() as u64) as usize,
        };
        let session = &mut self.sessions[which];
        session.extend(fresh.chunks(random.within(self.shape.turn)));
        let prompt = session.clone();
        if random.once_in(self.shape.turns) || prompt.len() > self.shape.longest {
            self.sessions[which] = self.new_session(random);
        }
        self.recent.push_back(which);
        if self.recent.len() > self.shape.recent {
            self.recent.pop_front();
        }
        prompt
    }
}

/// Multi-turn sessions over shared system prompts.
fn chat(requests: usize) -> Trace {
    let shape = Chat {
        tenants: 8,
        system: (4, 24),
        sessions: 400,
        turn: (1, 6),
        turns: 6,
        longest: 128,
        recent: 32,
    };
    let (mut random, mut fresh) = (Random::new(1), Fresh::default());
    let mut talk = Talk::new(shape, &mut random, &mut fresh);
    let requests = (0..requests).map(|_| talk.next(&mut random, &mut fresh)).collect();
    Trace::new("chat", "made", requests)
}

/// Questions about documents, which are asked once each.
fn rag(requests: usize) -> Trace {
    const SYSTEM: u64 = 4;
    const DOCUMENTS: u64 = 2000;
    const LENGTH: (u64, u64) = (8, 40);
    const SECOND_ONCE_IN: u64 = 4;
    const QUESTION: (u64, u64) = (1, 2);
    const SWAP_EVERY: usize = 1000;
    const SWAPS: usize = 100;
    let (mut random, mut fresh) = (Random::new(2), Fresh::default());
    let system = fresh.chunks(SYSTEM);
    let popularity = Zipf::new(DOCUMENTS);
    let lengths: Vec<u64> = (0..DOCUMENTS).map(|_| random.within(LENGTH)).collect();
    let mut by_rank: Vec<usize> = (0..lengths.len()).collect();
    // What a document's chunks are depends on the document before it.
    let mut prefilled: HashMap<(Option<usize>, usize), Vec<u32>> = HashMap::new();
    let mut request = |number: usize| {
        if number.is_multiple_of(SWAP_EVERY) && number > 0 {
            for _ in 0..SWAPS {
                by_rank.swap(random.below(DOCUMENTS) as usize, random.below(DOCUMENTS) as usize);
            }
        }
        let mut prompt = system.clone();
        let first = by_rank[popularity.rank(&mut random)];
        let second = random.once_in(SECOND_ONCE_IN).then(|| by_rank[popularity.rank(&mut random)]);
        for (before, document) in [(None, Some(first)), (Some(first), second)] {
            let Some(document) = document else { continue };
            let chunks = prefilled.entry((before, document));
            prompt.extend(chunks.or_insert_with(|| fresh.chunks(lengths[document])).iter());
        }
        prompt.extend(fresh.chunks(random.within(QUESTION)));
        prompt
    };
    let requests = (0..requests).map(&mut request).collect();
    Trace::new("rag", "made", requests)
}

/// A batch job over long documents, each read once, beside people who talk.
fn scan(requests: usize) -> Trace {
    const INSTRUCTION: u64 = 4;
    const BATCH_ONCE_IN: u64 = 8;
    const LENGTH: (u64, u64) = (64, 200);
    let shape = Chat {
        tenants: 4,
        system: (8, 24),
        sessions: 150,
        turn: (1, 6),
        turns: 8,
        longest: 128,
        recent: 16,
    };
    let (mut random, mut fresh) = (Random::new(3), Fresh::default());
    let instruction = fresh.chunks(INSTRUCTION);
    let mut talk = Talk::new(shape, &mut random, &mut fresh);
    let mut request = |_| match random.once_in(BATCH_ONCE_IN) {
        true => [instruction.clone(), fresh.chunks(random.within(LENGTH))].concat(),
        false => talk.next(&mut random, &mut fresh),
    };
    let requests = (0..requests).map(&mut request).collect();
    Trace::new("scan", "made", requests)
}

/// Prompts of 100,000 tokens that come once, among small ones with shared prefixes.
pub(crate) fn one_off(requests: usize) -> Trace {
    let (mut random, mut fresh) = (Random::new(11), Fresh::default());
    let (prefixes, popularity) = (fresh.prompts(200, 8), Zipf::new(200));
    let mut request = |_| match random.once_in(10) {
        true => fresh.chunks(390),
        false => [prefixes[popularity.rank(&mut random)].clone(), fresh.chunks(2)].concat(),
    };
    Trace::new("one-off", "adversarial", (0..requests).map(&mut request).collect())
}

/// Four times other documents are popular.
fn shift(requests: usize) -> Trace {
    let mut random = Random::new(12);
    let (documents, popularity) = (Fresh::default().prompts(2000, 10), Zipf::new(500));
    let request = |number: usize| {
        documents[4 * number / requests * 500 + popularity.rank(&mut random)].clone()
    };
    Trace::new("shift", "adversarial", (0..requests).map(request).collect())
}

/// Long sessions with many short turns.
fn agentic(requests: usize) -> Trace {
    let (mut random, mut fresh) = (Random::new(13), Fresh::default());
    let mut sessions = fresh.prompts(60, 20);
    let request = |_| {
        let session = &mut sessions[random.below(60) as usize];
        session.extend(fresh.chunks(random.within((1, 4))));
        let prompt = session.clone();
        if prompt.len() > 300 {
            *session = fresh.chunks(20);
        }
        prompt
    };
    Trace::new("agentic", "adversarial", (0..requests).map(request).collect())
}

/// The same documents over and over again, more than the cache has room for.
fn cycle(requests: usize) -> Trace {
    let documents = Fresh::default().prompts(500, 20);
    let prompts = documents.into_iter().cycle().take(requests).collect();
    Trace::new("cycle", "adversarial", prompts)
}

/// Popular documents, of which nobody asks while long ones are read once.
fn scan_and_return(requests: usize) -> Trace {
    let (mut random, mut fresh) = (Random::new(14), Fresh::default());
    let (documents, popularity) = (fresh.prompts(500, 10), Zipf::new(500));
    let request = |number: usize| match 8 * number / requests % 2 {
        0 => documents[popularity.rank(&mut random)].clone(),
        _ => fresh.chunks(20),
    };
    Trace::new("return", "adversarial", (0..requests).map(request).collect())
}
