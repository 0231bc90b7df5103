//! The pool: free queue, references, cached keys (spec/rules/pool.md).

use crate::sha256::Hash;
use std::collections::{BTreeMap, VecDeque};

pub const NULL: i64 = 0;

/// A block's hash and its group (KV-HASH-6).
pub type Key = Vec<u8>;

pub fn key_of(hash: &Hash, group: usize) -> Key {
    [hash.as_slice(), &(group as u32).to_be_bytes()].concat()
}

pub struct Pool {
    pub queue: VecDeque<i64>, // free blocks; the front is taken first (KV-POOL-2)
    pub references: Vec<i64>,
    pub keys: Vec<Option<Key>>,
    pub covered: Vec<i64>,
    pub cached: BTreeMap<Key, Vec<i64>>, // first registered first (KV-POOL-13)
    unhashed_to_front: bool,
}

impl Pool {
    pub fn new(num_blocks: i64, unhashed_to_front: bool) -> Pool {
        let number = num_blocks as usize;
        Pool {
            queue: (1..num_blocks).collect(), // KV-POOL-1: without the null block
            references: vec![0; number],
            keys: vec![None; number],
            covered: vec![0; number],
            cached: BTreeMap::new(),
            unhashed_to_front,
        }
    }
    pub fn num_free(&self) -> i64 {
        self.queue.len() as i64
    }
    pub fn is_free(&self, block: i64) -> bool {
        block != NULL && self.references[block as usize] == 0
    }
    pub fn find(&self, key: &Key) -> Option<i64> {
        self.cached.get(key).map(|copies| copies[0])
    }

    /// Blocks from the front, without their old keys (KV-POOL-3, KV-POOL-4). There must be enough.
    pub fn allocate(&mut self, number: i64) -> Vec<i64> {
        let taken: Vec<i64> = self.queue.drain(..number as usize).collect();
        for block in &taken {
            self.forget(*block);
            self.references[*block as usize] = 1;
        }
        taken
    }

    /// One more reference; a free block leaves the queue (KV-POOL-5).
    pub fn touch(&mut self, block: i64) {
        if self.is_free(block) {
            self.queue.retain(|free| *free != block);
        }
        self.references[block as usize] += 1;
    }

    /// One release call: what is cached goes to the back in order, the rest to the front
    /// (KV-POOL-6, KV-POOL-7).
    pub fn release(&mut self, blocks: &[i64]) {
        let mut unhashed = Vec::new();
        for block in blocks.iter().filter(|block| **block != NULL) {
            let number = *block as usize;
            self.references[number] -= 1;
            if self.references[number] > 0 {
            } else if self.keys[number].is_none() && self.unhashed_to_front {
                unhashed.push(*block);
            } else {
                self.queue.push_back(*block);
            }
        }
        for block in unhashed.into_iter().rev() {
            self.queue.push_front(block);
        }
    }

    pub fn insert(&mut self, block: i64, key: Key, num_tokens: i64) {
        self.forget(block); // KV-POOL-14
        self.keys[block as usize] = Some(key.clone());
        self.covered[block as usize] = num_tokens;
        self.cached.entry(key).or_default().push(block);
    }

    /// Forget everything cached, if nothing is in use (KV-POOL-11).
    pub fn reset(&mut self) -> bool {
        let is_idle = self.queue.len() + 1 == self.references.len();
        if is_idle {
            (1..self.references.len()).for_each(|block| self.forget(block as i64));
        }
        is_idle
    }

    /// Drop the cached identity (KV-POOL-10).
    pub fn forget(&mut self, block: i64) {
        let Some(key) = self.keys[block as usize].take() else { return };
        self.covered[block as usize] = 0;
        let copies = self.cached.get_mut(&key).expect("a key stands with its blocks");
        copies.retain(|copy| *copy != block);
        if copies.is_empty() {
            self.cached.remove(&key);
        }
    }
}
