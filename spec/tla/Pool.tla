-------------------------------- MODULE Pool --------------------------------
(* The block pool: free queue, references, cached identity (spec/rules/pool.md).

   A pool is a record:

     queue   the free blocks, the one that is taken next first
     refs    how many references each block has
     keys    the key that each block carries, NoKey if none
     cached  for each key that is cached, the blocks that carry it, the one
             that was registered first in front

   A key is a tuple: a group, then all tokens from the start of the text to the
   end of the block. In place of a hash stands what is hashed, so none collide.

   Each operator is a call: it takes a pool and answers the pool afterwards. *)
EXTENDS Integers, Sequences, FiniteSets

CONSTANT NumBlocks     \* the null block included

Null == 0                                                       \* KV-POOL-1
Blocks == 1 .. NumBlocks - 1
NoKey == <<>>

NewPool ==                                                      \* KV-POOL-2
  [queue  |-> [i \in Blocks |-> i],
   refs   |-> [b \in Blocks |-> 0],
   keys   |-> [b \in Blocks |-> NoKey],
   cached |-> [k \in {} |-> <<>>]]

NumFree(p) == Len(p.queue)
IsFree(p, b) == b # Null /\ p.refs[b] = 0
CachedKeys(p) == DOMAIN p.cached

\* The block that a look-up of the key answers: the first registered (KV-POOL-13).
Find(p, key) == IF key \in CachedKeys(p) THEN Head(p.cached[key]) ELSE Null

\* A set of blocks loses its keys, wherever the blocks are (KV-POOL-10).
Forget(p, blocks) ==
  LET lost == {p.keys[b] : b \in blocks} \ {NoKey}
      left == [key \in lost |-> SelectSeq(p.cached[key], LAMBDA b : b \notin blocks)]
      gone == {key \in lost : left[key] = <<>>}
  IN IF lost = {} THEN p
     ELSE [p EXCEPT
             !.keys = [b \in Blocks |-> IF b \in blocks THEN NoKey ELSE p.keys[b]],
             !.cached = [key \in CachedKeys(p) \ gone |->
                           IF key \in lost THEN left[key] ELSE p.cached[key]]]

\* The first n of the queue get one reference each (KV-POOL-3) and lose their keys (KV-POOL-4).
Taken(p, n) == SubSeq(p.queue, 1, n)

Allocate(p, n) ==
  LET taken == {p.queue[i] : i \in 1 .. n}
  IN [Forget(p, taken) EXCEPT
        !.queue = SubSeq(p.queue, n + 1, Len(p.queue)),
        !.refs = [b \in Blocks |-> IF b \in taken THEN 1 ELSE p.refs[b]]]

\* A set of hit blocks: one more reference each; free ones leave the queue (KV-POOL-5).
Touch(p, blocks) ==
  [p EXCEPT
     !.queue = SelectSeq(p.queue, LAMBDA b : b \notin blocks),
     !.refs = [b \in Blocks |-> IF b \in blocks THEN p.refs[b] + 1 ELSE p.refs[b]]]

\* References after those of a list are given back; Null is passed over.
RECURSIVE RefsWithout(_, _)
RefsWithout(list, refs) ==
  IF list = <<>> THEN refs
  ELSE RefsWithout(Tail(list),
                   IF Head(list) = Null THEN refs ELSE [refs EXCEPT ![Head(list)] = @ - 1])

\* Of a list that is released, the blocks that lose their last reference, in order.
RECURSIVE Freed(_, _)
Freed(list, refs) ==
  IF list = <<>> THEN <<>>
  ELSE (IF Head(list) # Null /\ refs[Head(list)] = 1 THEN <<Head(list)>> ELSE <<>>)
       \o Freed(Tail(list), RefsWithout(<<Head(list)>>, refs))

\* One release call: unhashed blocks to the front as a run, cached ones to the back (KV-POOL-6).
Release(p, list) ==
  LET freed == Freed(list, p.refs)
  IN IF list = <<>> THEN p
     ELSE [p EXCEPT
             !.refs = RefsWithout(list, p.refs),
             !.queue = SelectSeq(freed, LAMBDA b : p.keys[b] = NoKey) \o p.queue
                       \o SelectSeq(freed, LAMBDA b : p.keys[b] # NoKey)]

\* A block is cached, behind the copies that there are (KV-POOL-13, KV-POOL-14).
Register(p, b, key) ==
  [p EXCEPT
     !.keys[b] = key,
     !.cached = IF key \in CachedKeys(p) THEN [p.cached EXCEPT ![key] = Append(@, b)]
                ELSE [k \in CachedKeys(p) \cup {key} |-> IF k = key THEN <<b>> ELSE p.cached[k]]]

\* All keys go if no block is in use; else nothing changes (KV-POOL-11).
Reset(p) == IF NumFree(p) = NumBlocks - 1 THEN Forget(p, Blocks) ELSE p

-----------------------------------------------------------------------------
(* The invariants of kvspec.invariants that speak of a pool. *)

PoolHasTheRightShape(p) ==                                      \* KV-CFG-2
  /\ \A i \in 1 .. Len(p.queue) : p.queue[i] \in 0 .. NumBlocks - 1
  /\ DOMAIN p.refs = Blocks /\ DOMAIN p.keys = Blocks

NullIsApart(p) ==                                               \* KV-POOL-1
  /\ \A i \in 1 .. Len(p.queue) : p.queue[i] # Null
  /\ \A key \in CachedKeys(p) : \A i \in 1 .. Len(p.cached[key]) : p.cached[key][i] # Null

QueueHasNoDuplicates(p) ==                                      \* KV-POOL-15
  Cardinality({p.queue[i] : i \in 1 .. Len(p.queue)}) = Len(p.queue)

FreeIsUnreferenced(p) ==                                        \* KV-POOL-15
  LET free == {p.queue[i] : i \in 1 .. Len(p.queue)}
  IN \A b \in Blocks : p.refs[b] >= 0 /\ (p.refs[b] = 0 <=> b \in free)

KeysAgree(p) ==                                                 \* KV-POOL-13
  /\ \A b \in Blocks : p.keys[b] # NoKey =>
       /\ p.keys[b] \in CachedKeys(p)
       /\ \E i \in 1 .. Len(p.cached[p.keys[b]]) : p.cached[p.keys[b]][i] = b
  /\ \A key \in CachedKeys(p) :
       \A i \in 1 .. Len(p.cached[key]) : p.keys[p.cached[key][i]] = key

KeysListedOnce(p) ==                                            \* KV-POOL-14
  \A key \in CachedKeys(p) :
    /\ p.cached[key] # <<>>
    /\ Cardinality({p.cached[key][i] : i \in 1 .. Len(p.cached[key])}) = Len(p.cached[key])
=============================================================================
