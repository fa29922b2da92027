package swordbox

// crashMutants break what a process leaves to the next one, and what that makes of it.
func crashMutants() []mutant {
	const crash, question = "BeforeTheCrash|TestNothingMeanwhile", "BeforeTheQuestion"
	return []mutant{
		{"WRITEs of which nobody knows are sent again", "recover.go", "f.inDoubt = true", "f.inDoubt = false", frames, crash},
		{"WRITEs of which nobody knows are sent again, by a scene", "recover.go", "f.inDoubt = true", "f.inDoubt = false", histories, "TestCrash"},
		{"the server is asked while frames may be under way", "doubt.go", "case now < s.n.mem.barred:", "case false:", frames, crash},
		{"the question takes no PSN", "doubt.go", "if c.next = psnAdd(psn, 1); psn == c.gate {", "if psn == c.gate {", frames, crash},
		{"the question has the PSN of what is open", "doubt.go", "&o, nil, c.gate)", "&o, nil, c.acked)", frames, crash},
		{"the question adds", "doubt.go", "op{kind: kFAA, ", "op{kind: kFAA, out: 1, ", frames, crash},
		{"PSNs of what was cut off are not used again", "doubt.go", "c.newest, c.next = none, none, psn", "c.newest = none, none", frames, crash},
		{"the PSN of the question is used before its answer came", "order.go", "|| c.gated ||", "||", frames, question},
		{"what the server misses before the question is not filled", "doubt.go", "if c.inDoubt = false; c.gated {\n\t\ts.fill(c)", "if c.inDoubt = false; false {\n\t\ts.fill(c)", frames, crash},
		{"the next process does not know that a question was asked", "recover.go", "gated: f.gated && !f.dead, ", "", frames, question},
		{"nobody asks again when nothing is open", "watch.go", "(f.oldest != none || f.gated)", "f.oldest != none", frames, question},
		{"a connection stays in doubt", "carrier.go", "c.inDoubt = false // whichever", "_ = 0 // whichever", frames, question},
		{"repetitions go out while nobody knows", "repair.go", "if c.inDoubt {\n\t\ts.c.Drop(x, reasonRepeat)", "if false {\n\t\ts.c.Drop(x, reasonRepeat)", frames, "TestNothingMeanwhile"},
		{"operations go over a connection in doubt", "order.go", "|| c.inDoubt || c.gated ||", "||", frames, crash},
		{"an operation whose frame never left is on record", "recover.go", "\t\tg.tail--\n", "", frames, "TestDiesBeforeItSends"},
		{"the order of PSNs is not made anew", "recover.go", "cmp.Compare(hdr.PSNDiff(a.spsn, c.acked), hdr.PSNDiff(b.spsn, c.acked))", "cmp.Compare(n.place(a), n.place(b))", frames, "TestCarriedInOrder"},
		{"the next PSN is the first", "recover.go", "c.next = psnAdd(o.spsn, o.npsn)\n", "", frames, crash},
		{"order=word ends with the process", "recover.go", "o.word == none && !o.is(fBare|fOrphan)", "false", frames, "TestWordOrderOverACrash"},
		{"words of WRITEs under way are nobody's", "recover.go", "n.words.w[w].writes++\n", "", frames, "TestNothingMeanwhile|TestHandedOverWrite"},
		{"messages are counted from the beginning", "recover.go", "base: f.base, ", "", frames, crash},
		{"frames cross while nobody is there", "memory.go", "n.c.Bind(q, true) != nil", "q.QPN == 1", histories, "TestKilled"},
		{"what is on record is not bound by the next process", "recover.go", "s.c.Rebind(bound)", "s.c.Rebind(nil)", histories, "TestCrash"},
		{"a row of another connection is believed", "recover.go", "if identityOf(&n.rows[i]) != r {", "if false {", frames, "TestDamagedState"},
		{"absurd numbers are believed", "recover.go", "if !n.flows[i].sane(n.window) {", "if false {", frames, "TestDamagedState"},
		{"another version's state is believed", "recover.go", "case le.Uint32(m.b[8:]) != layout():", "case false:", frames, "TestDamagedState|TestLost"},
		{"a state of the future is believed", "recover.go", "case now < alive:", "case false:", frames, "TestDamagedState"},
		{"what another process let through is over at once", "recover.go", "s.mem.barred = min(alive.Add(time.Duration(tick)), now).Add(s.cfg.settle)", "", frames, "TestReplacesSoon|" + crash},
		{"what crossed unseen is of no matter", "flush.go", "n.words.touchAll(0, until)", "", frames, "TestLate"},
		{"numbering goes on though frames crossed unseen", "flush.go", "if f := &n.flows[i]; f.synced && !f.bound {", "if f := &n.flows[i]; false && f.synced {", frames, "TestLate"},
		{"bound connections are let go when frames crossed unseen", "flush.go", "f.synced && !f.bound", "f.synced", frames, "TestLate"},
		{"answers that were held are not asked for again", "recover.go", "o.state, o.got = sUnsent, 0 // its client", "_ = 0 // its client", frames, "TestHeldAnswerIsGone"},
	}
}
