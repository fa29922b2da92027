package clover

import (
	"testing"

	"github.com/quillon/quillon/tests/mutant"
)

// tracker is the package that tells which frames are of which connection.
const tracker = "tor/conn"

// connMutants break what clover-steer and swordbox believe of connections.
func connMutants() (all []mutant.Mutant) {
	for _, m := range []struct{ name, file, old, new, run string }{
		// What a frame of a known connection must have.
		{"a request from another address is its client's", "data.go", "if r.Client.Addr != ends.Src || r.Net != f.Net || t.cfg.GuardMAC && !r.Client.mayBe(b) {\n\t\treturn t.stranger", "if r.Net != f.Net || t.cfg.GuardMAC && !r.Client.mayBe(b) {\n\t\treturn t.stranger", "TestGuard|TestReuse"},
		{"a request by another network is its client's", "data.go", "if r.Client.Addr != ends.Src || r.Net != f.Net || t.cfg.GuardMAC && !r.Client.mayBe(b) {\n\t\treturn t.stranger", "if r.Client.Addr != ends.Src || t.cfg.GuardMAC && !r.Client.mayBe(b) {\n\t\treturn t.stranger", "TestNetworks|TestGuard"},
		{"an answer from another address is its server's", "data.go", "if r.Server.Addr != ends.Src || r.Net != f.Net || t.cfg.GuardMAC && !r.Server.mayBe(b) {\n\t\treturn NoSlot, Spoofed", "if r.Net != f.Net || t.cfg.GuardMAC && !r.Server.mayBe(b) {\n\t\treturn NoSlot, Spoofed", "TestGuard|TestAgainstModel"},
		{"an answer by another network is its server's", "data.go", "if r.Server.Addr != ends.Src || r.Net != f.Net || t.cfg.GuardMAC && !r.Server.mayBe(b) {\n\t\treturn NoSlot, Spoofed", "if r.Server.Addr != ends.Src || t.cfg.GuardMAC && !r.Server.mayBe(b) {\n\t\treturn NoSlot, Spoofed", "TestNetworks|TestGuard"},
		{"MAC addresses are not looked at", "data.go", "return e.L2 == [12]byte{} || e.SrcMAC() == [6]byte(b[6:12])", "return true", "TestGuard"},
		{"the same address in another VLAN is the same host", "row.go", "a.vlan = uint64(vlan); return a", "return a", "TestStatic|TestNetworks|TestAgainstModel"},
		{"a plain frame from another address is plain", "data.go", "from.Addr != ends.Src || ", "", "TestPlain"},
		{"a plain frame by another network is plain", "data.go", "from.Addr != ends.Src || r.Net != f.Net || t.cfg.GuardMAC && !from.mayBe(b) ||\n", "from.Addr != ends.Src || t.cfg.GuardMAC && !from.mayBe(b) ||\n", "TestNotPlain"},
		{"a plain frame of another MAC address is plain", "data.go", "t.cfg.GuardMAC && !from.mayBe(b) ||\n", "\n", "TestPlain"},
		{"a frame in the other direction is plain", "data.go", "k.client() == (fl&hdr.IsRequest != 0) || ", "", "TestNotPlain"},
		{"another worker's connection is plain", "data.go", "owner != 0 && r.Owner != owner || ", "", "TestPlain"},
		{"a connection that is watched is plain", "data.go", "r.easy == hard || r.MTU == 0 && fl&", "r.MTU == 0 && fl&", "TestPlain"},
		{"what would tell the path MTU is plain", "data.go", "r.easy == hard || r.MTU == 0 && fl&hdr.IsResponse != 0 && fl&(hdr.IsFirst|hdr.IsMiddle) != 0", "r.easy == hard", "TestNotPlain"},
		// The short way for most frames.
		{"a connection that is watched is found easily", "table.go", "r.easy != plain || ", "", "TestPlain|TestNotPlain"},
		{"MAC addresses do not matter to who is found easily", "row.go", " && !t.cfg.GuardMAC", "", "TestNotPlain|TestGuard"},
		{"who has another network is found easily", "row.go", "case r.Net == hdr.NetIPv4 && ", "case ", "TestNotPlain"},
		{"a queue pair with another's hash is found easily", "table.go", "to.QPN != qpn || ", "qpn > 0xFFFFFF || ", "TestSameHash"},
		{"an address with another's hash is found easily", "table.go", "to.Addr.lo != dst || from", "dst != ends.Dst.lo || from", "TestSameHash"},
		{"a frame from another address is found easily", "table.go", "from.Addr.lo != ends.Src.lo ||", "false ||", "TestReuse|TestLetGoWhenIdle"},
		{"a frame in the other direction is found easily", "table.go", "uint32(k)&1 == uint32(fl&hdr.IsRequest) || ", "", "TestNotPlain"},
		{"another worker's connection is found easily", "table.go", "owner != 0 && r.Owner != owner || ", "", "TestNotPlain"},
		{"what tells the path MTU is found easily", "table.go", " || fl&(hdr.IsFirst|hdr.IsMiddle) != 0 && r.MTU == 0 && fl&hdr.IsResponse != 0 {", " {", "TestNotPlain"},
		{"who is found easily was not heard", "table.go", "\t\tr.LastSeen = now\n\t\treturn k.slot()", "\t\treturn k.slot()", "TestPlain"},
		{"who connects and sends nothing keeps a place", "room.go", "return learnt > Inferred && t.spare(now, unused, t.cfg.Yield) || ", "return ", "TestUnusedMakeRoom"},
		{"who is answered makes room as one that sent nothing", "data.go", "\tt.useful(s)\n", "", "TestUnusedMakeRoom"},
		// Which queue pairs belong together.
		{"any answer that fits has found its client", "psn.go", "return r.matches >= enough && (", "return r.matches > 0 && (", "TestInference|TestEvidence|TestDoubts"},
		{"who goes on asking is not waited for", "psn.go", "(t.cfg.Settle < 0 || r.asks >= enough)", "true", "TestPairingIsNeverWrong|TestDoubts"},
		{"an answer that two may have asked for is one's", "data.go", "if n > 1 || !t.settled(&t.rows[found]) {", "if !t.settled(&t.rows[found]) {", "TestPairingIsNeverWrong|TestLockstepIsToldApart|TestDoubts"},
		{"an answer from before a request answers it", "data.go", "return hdr.PSNDiff(p, r.low) >= 0 && hdr.PSNDiff(r.next, p) > 0", "return hdr.PSNDiff(r.next, p) > 0", "TestCaptures|TestIdleClient|TestVoicesInTime|TestInference|TestContradictions|TestFull|TestBothDirections|TestDoubts|TestUnlisted|TestNetworks|TestRecall|TestGuard|TestRepetition|TestPlain|TestEvidence|TestAdopt|TestLearnsMTU|TestNoAllocation|TestFuzz|TestHandshake"},
		{"an answer to what was not asked answers it", "data.go", "return hdr.PSNDiff(p, r.low) >= 0 && hdr.PSNDiff(r.next, p) > 0", "return hdr.PSNDiff(p, r.low) >= 0", "TestWrapAround|TestEvidence|TestInference"},
		{"the same answer counts again", "data.go", "case hdr.PSNDiff(p, r.matched) > 0:\n\t\tr.matched = p", "default:\n\t\tr.matched = p", "TestEvidence|TestInference|TestDoubts"},
		{"another candidate has the first one's answers", "data.go", "r.doubt()\n\t\tr.candidate, r.matched, r.matches = qpn, p, 1", "r.candidate, r.matched, r.matches = qpn, p, r.matches+1", "TestEvidence|TestDoubts|TestPairingIsNeverWrong"},
		{"a refusal is an answer", "data.go", "if !f.Op.Any(hdr.IsLast|hdr.IsOnly) || !answers(b, f) {", "if !f.Op.Any(hdr.IsLast|hdr.IsOnly) {", "TestCaptures|TestIdleClient|TestVoicesInTime|TestInference|TestContradictions|TestFull|TestBothDirections|TestDoubts|TestUnlisted|TestNetworks|TestRecall|TestGuard|TestRepetition|TestPlain|TestEvidence|TestAdopt|TestLearnsMTU|TestNoAllocation|TestFuzz|TestHandshake"},
		{"each packet of a READ's answer counts", "data.go", "if !f.Op.Any(hdr.IsLast|hdr.IsOnly) || !answers(b, f) {", "if !answers(b, f) {", "TestEvidence|TestReadLength|TestInference"},
		{"who repeats what was answered is no contradiction", "psn.go", "r.doubt() // it had no answer: that was another's", "_ = r", "TestEvidence|TestDoubts|TestPairingIsNeverWrong"},
		{"who is answered what it did not ask is no contradiction", "psn.go", "r.doubt() // it asked for no such thing", "_ = r", "TestEvidence|TestDoubts|TestPairingIsNeverWrong"},
		{"two that are answered at a time are no contradiction", "psn.go", "r.doubt() // both answer what was asked just now, or a request was not seen", "_ = r", "TestEvidence|TestDoubts|TestPairingIsNeverWrong"},
		{"the UDP port tells nothing", "psn.go", "if fitSame == 1 {", "if false {", "TestPairingIsNeverWrong|TestUnlisted|TestMoreThanPlaces|TestInference"},
		{"one of two of the same UDP port is meant", "psn.go", "if fitSame == 1 {", "if fitSame > 0 {", "TestPairingIsNeverWrong|TestUnlisted|TestMoreThanPlaces|TestLockstepIsToldApart"},
		{"a connection without room is nobody's rival", "data.go", "t.unlisted(now, l, src, dst, portOf(b, f))\n", "_ = l\n", "TestUnlisted|TestMoreThanPlaces"},
		{"where some have no room others are paired", "data.go", "} else if !byPort || t.recent", "} else if !byPort && false || t.recent", "TestUnlisted|TestMoreThanPlaces"},
		{"what spoke for candidates counts when there is no more room", "psn.go", "t.rows[i-1].doubt()\n", "_ = i\n", "TestUnlisted|TestMoreThanPlaces|TestPairingIsNeverWrong"},
		{"one contradiction undoes a pairing", "data.go", "if r.misses++; r.misses < enough {", "if r.misses++; false {", "TestContradictions"},
		{"contradictions do not undo a pairing", "data.go", "if r.misses++; r.misses < enough {", "if r.misses++; true {", "TestContradictions"},
		{"who numbers requests himself is contradicted", "data.go", "if r.Learnt != Inferred || r.pinned {", "if r.Learnt != Inferred {", "TestCaptures|TestIdleClient|TestVoicesInTime|TestInference|TestContradictions|TestFull|TestBothDirections|TestDoubts|TestUnlisted|TestNetworks|TestRecall|TestGuard|TestRepetition|TestPlain|TestEvidence|TestAdopt|TestLearnsMTU|TestNoAllocation|TestFuzz|TestHandshake"},
		{"requests that begin anew are of no other connection", "psn.go", "return r.wild < enough", "return true", "TestReuse|TestContradictions|TestClaims"},
		{"one request that is elsewhere begins anew", "psn.go", "return r.wild < enough", "return false", "TestReuse|TestContradictions|TestClaims|TestRoomForSpoofers"},
		{"requests elsewhere need not follow each other", "psn.go", "if psn != r.wildNext {\n\t\t\tr.wild = 0\n\t\t}", "_ = 0", "TestCaptures|TestIdleClient|TestVoicesInTime|TestInference|TestContradictions|TestFull|TestBothDirections|TestDoubts|TestUnlisted|TestNetworks|TestRecall|TestGuard|TestRepetition|TestPlain|TestEvidence|TestAdopt|TestLearnsMTU|TestNoAllocation|TestFuzz|TestHandshake"},
		// Others that use their numbers.
		{"a queue pair that was heard just now is another's", "data.go", "guess := r.Learnt == Inferred && now.Sub(r.LastSeen) >= t.cfg.Reuse", "guess := r.Learnt == Inferred", "TestReuse|TestGuard|TestClaims"},
		{"what is known for sure is another's after a while", "data.go", "guess := r.Learnt == Inferred && now.Sub(r.LastSeen) >= t.cfg.Reuse", "guess := now.Sub(r.LastSeen) >= t.cfg.Reuse", "TestLetGoWhenIdle"},
		{"who claims a queue pair has it at once", "data.go", "if r.waits && !t.proven(now, found) {", "if false {", "TestReuse|TestClaims"},
		{"who was heard again loses its queue pair", "data.go", "o.Learnt != Inferred || now.Sub(o.LastSeen) < t.cfg.Reuse || o.pinned", "o.Learnt != Inferred || o.pinned", "TestReuse|TestClaims"},
		{"who may not go goes for a claim", "data.go", "o.pinned && (t.cfg.LetGo == nil || !t.cfg.LetGo(k.slot()))", "false", "TestAgainstModel|TestPairing|TestStatic|TestReuse|TestClaims|TestRoom|TestLetGo|TestLockstep|TestNotes|TestNoVoice|TestMoreThanPlaces"},
		{"who may not go goes for want of room", "room.go", "case r.pinned && (t.cfg.LetGo == nil || !t.cfg.LetGo(s)):", "case false:", "TestLetGo|TestFullOfLiving"},
		{"who may not go goes when it is to be closed", "table.go", "quiet >= t.cfg.Close && t.mayGo(s)", "quiet >= t.cfg.Close", "TestAttackUnseenDisconnect"},
		{"what is to be closed and goes on is closed", "data.go", "if now.Sub(r.LastSeen) < outlived {", "if true {", "TestAttackUnseenDisconnect"},
		{"a handshake takes who may not go", "cm.go", "own.slot() == k.slot() || t.mayGo(k.slot()) {", "own.slot() == k.slot() || true {", "TestAttackMadeUpHandshake"},
		{"the server does not know its own queue pairs", "cm.go", "own != noRef && own.slot() == k.slot() || ", "own != noRef && own.slot() == k.slot() && false || ", "TestAttackMadeUpHandshake"},
		{"who is named has a new row", "static.go", "r.State == Paired && r.pinned:", "r.State == Paired && r.pinned && false:", "TestAttackNamedInUse"},
		{"who is named takes who may not go", "static.go", "case r.Learnt == Inferred && t.mayGo(k.slot()):", "case r.Learnt == Inferred:", "TestAttackNamedInUse"},
		{"whoever asked for the end may reply to that", "cm.go", "r.enders&ender(toClient) != 0", "r.enders != 0", "TestAgainstModel"},
		{"who may not go goes when it is quiet", "table.go", "quiet >= t.cfg.Idle && t.mayGo(s)", "quiet >= t.cfg.Idle", "TestLetGoWhenIdle"},
		{"rows from configuration are forgotten", "table.go", "return r.Learnt != Static && ", "return ", "TestCaptures|TestIdleClient|TestVoicesInTime|TestInference|TestContradictions|TestFull|TestBothDirections|TestDoubts|TestUnlisted|TestNetworks|TestRecall|TestGuard|TestRepetition|TestPlain|TestEvidence|TestAdopt|TestLearnsMTU|TestNoAllocation|TestFuzz|TestHandshake"},
		// Room.
		{"one client has all half-open places", "room.go", "case int(*t.halves(c, client)) >= one:", "case int(*t.halves(c, client)) >= one && false:", "TestRoomForSpoofers|TestStrangersAreBounded|TestHandshakeWithoutRoom"},
		{"half-open rows have all places", "room.go", "case len(t.quiet[guesses])+len(t.quiet[handshakes]) < all:", "case true:", "TestRoomForSpoofers|TestStrangersAreBounded|TestRoom"},
		{"requests that were made up take the place of connections", "room.go", "if len(t.quiet[guesses])+len(t.quiet[handshakes]) >= max(1, len(t.rows)/4) {", "if false {", "TestRoomForSpoofers|TestStrangersAreBounded|TestRoom"},
		{"who was heard since makes room", "room.go", "case r.since < r.LastSeen:\n\t\t\tr.since = r.LastSeen\n", "", "TestRoom|TestFullOfLiving|TestStrangersAreBounded"},
		{"a row between two hosts is compared without end", "data.go", "l.n < maxCandidates && ", "", "TestCandidatesAreBounded"},
		// The connection manager.
		{"a reply to another request is its reply", "cm.go", "if !toClient || m.TransactionID() != r.tid {", "if !toClient {", "TestHandshakeCorners|TestAgainstModel|TestHandshake"},
		{"the connection manager of another host is the peer's", "cm.go", "if from.Addr != src || to.Addr != dst || r.Net != f.Net", "if to.Addr != dst || r.Net != f.Net", "TestAgainstModel|TestGuard|TestHandshakeCorners"},
		{"who calls the connection otherwise ends it", "cm.go", "if from.hasComm && m.LocalCommID() != from.CommID && (", "if false && (", "TestHandshakeCorners|TestAgainstModel"},
		{"an end is asked for another queue pair", "cm.go", "if r.State == HalfOpen || m.RemoteQPN() != to.QPN {", "if r.State == HalfOpen {", "TestHandshakeCorners|TestAgainstModel|TestTimeWait"},
		{"what nobody asked to end ends", "cm.go", "if !r.wasAsked(toClient) {\n\t\t\treturn NoSlot, Forged\n\t\t}\n\t\tt.Remove(s)", "t.Remove(s)", "TestHandshakeCorners|TestAgainstModel"},
		{"a connection that is used is rejected", "cm.go", "if r.ready || r.State == Closing {", "if r.State == Closing {", "TestHandshakeCorners|TestAgainstModel"},
		{"another answer is the reply once more", "cm.go", "if r.Server.CommID != m.LocalCommID() || r.Server.QPN != m.LocalQPN() || r.Client.StartPSN != m.StartingPSN() {", "if r.Server.CommID != m.LocalCommID() || r.Client.StartPSN != m.StartingPSN() {", "TestHandshakeCorners|TestAgainstModel"},
		{"who lives makes room for a handshake", "cm.go", "if r.waits && t.lives(s) {", "if false {", "TestClaims|TestHandshakeCorners|TestReuse"},
		{"a reply takes queue pairs that are others'", "cm.go", "o.rival, r.waits = s+1, true", "o.rival = 0", "TestClaims|TestHandshakeCorners|TestReuse|TestAgainstModel"},
		{"names of connections that have ended are strangers'", "past.go", "default:\n\t\t\treturn Ended", "default:\n\t\t\treturn Stray", "TestTimeWait"},
		{"names of connections that have ended are known for ever", "past.go", " || now >= p.until {", " {", "TestTimeWait|TestTimeWaitIsBounded"},
		{"a row on record that makes no sense is taken", "adopt.go", "!x.plausible() || ", "", "TestAdopt$"},
		{"a row on record takes others' queue pairs", "adopt.go", " || t.find(c.Addr, c.QPN) != noRef || t.find(v.Addr, v.QPN) != noRef {", " {", "TestAdoptAnyTable|TestAdopt"},
		{"a connection is recalled over another", "static.go", "case k == noRef && l == noRef:", "case k == noRef || l == noRef:", "TestRecall"},
	} {
		all = append(all, mutant.Mutant{Name: m.name, File: m.file, Old: m.old, New: m.new, By: "./" + tracker, Run: m.run})
	}
	return all
}

// TestMutantsOfConn is TestMutants for the tracker.
func TestMutantsOfConn(t *testing.T) { mutant.Run(t, tracker, connMutants()) }

// Every one of them can still be made.
func TestMutantTextsOfConn(t *testing.T) { mutant.Texts(t, tracker, connMutants()) }
