----------------------------- MODULE PoolModel ------------------------------
(* A pool by itself, called in every order that is legal: the states of Pool. *)
EXTENDS Pool

CONSTANTS NumKeys,       \* contents that may be cached
          MaxRefs,       \* references that may be on a block
          MaxReleased    \* blocks, or twice the same one, that one call may give back

VARIABLE pool

PoolKeys == {<<k>> : k \in 1 .. NumKeys}
Lists == UNION {[1 .. n -> Blocks] : n \in 1 .. MaxReleased}
Times(b, list) == Cardinality({i \in 1 .. Len(list) : list[i] = b})

Init == pool = NewPool

TakeBlocks(n) ==                                                \* KV-POOL-3, KV-POOL-4
  n <= NumFree(pool) /\ pool' = Allocate(pool, n)

TouchBlocks(blocks) ==                                          \* KV-POOL-5
  /\ \A b \in blocks : pool.keys[b] # NoKey /\ pool.refs[b] < MaxRefs
  /\ pool' = Touch(pool, blocks)

ReturnBlocks(list) ==                                           \* KV-POOL-6
  /\ \A b \in Blocks : Times(b, list) <= pool.refs[b]
  /\ pool' = Release(pool, list)

RegisterBlock(b, key) ==                                        \* KV-POOL-14, KV-POOL-18
  /\ pool.refs[b] > 0 /\ pool.keys[b] = NoKey
  /\ pool' = Register(pool, b, key)

EvictBlock(b) == pool.keys[b] # NoKey /\ pool' = Forget(pool, {b})   \* KV-POOL-10

ResetPool == pool' = Reset(pool)                                \* KV-POOL-11

Next ==
  \/ \E n \in 1 .. NumBlocks - 1 : TakeBlocks(n)
  \/ \E blocks \in SUBSET Blocks \ {{}} : TouchBlocks(blocks)
  \/ \E list \in Lists : ReturnBlocks(list)
  \/ \E b \in Blocks, key \in PoolKeys : RegisterBlock(b, key)
  \/ \E b \in Blocks : EvictBlock(b)
  \/ ResetPool

Spec == Init /\ [][Next]_pool

has_the_right_shape == PoolHasTheRightShape(pool)
null_block_is_apart == NullIsApart(pool)
free_queue_has_no_duplicates == QueueHasNoDuplicates(pool)
free_means_unreferenced == FreeIsUnreferenced(pool)
keys_and_lookups_agree == KeysAgree(pool)
keys_are_listed_once == KeysListedOnce(pool)
=============================================================================
