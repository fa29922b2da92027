package swordbox

import "testing"

// Another process left operations over others' connections under five R_Keys that share four places. None of these R_Keys is invalidated
// under an operation, also when its place comes free meanwhile, and in the end each is.
func TestMoreKeysOfGuestsThanPlaces(t *testing.T) {
	var k keys
	k.init(0, 1, func(*flow) uint64 { return 0 })
	rkeys := []uint32{testRKey}
	for r := uint32(testRKey + 1); len(rkeys) <= keyWays; r++ {
		if &k.set(r)[0] == &k.set(testRKey)[0] {
			rkeys = append(rkeys, r)
		}
	}
	var ops []*op
	for range 2 {
		for _, r := range rkeys {
			ops = append(ops, &op{rkey: r, len: 8, kind: kWrite, flags: fGuest})
			k.inherit(ops[len(ops)-1], 1)
		}
	}
	open := map[uint32]int{}
	for _, o := range ops {
		open[o.rkey]++
	}
	for i, o := range ops {
		for _, r := range rkeys {
			if open[r] > 0 && k.invalidate(r, 2) {
				t.Fatalf("after %d operations %#x is invalidated under %d", i, r, open[r])
			}
		}
		if open[rkeys[0]] == 0 { // its place is another's
			if x := k.find(rkeys[0]); x != nil && x.guests == 0 {
				k.revoke(x)
				x.reach = reach{}
			}
			k.fresh(rkeys[keyWays])
		}
		k.guest(o, -1)
		open[o.rkey]--
	}
	for _, r := range rkeys {
		if !k.invalidate(r, 2) {
			t.Errorf("%#x is never invalidated", r)
		}
	}
}
