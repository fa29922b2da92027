package offload

// Each end of a veth may belong to another instance. Only GRO concerns both: the instance at an end turns GRO off there, and the
// instance at the other end turns it on while no native program is at the first end. Of the two, only the one that changed it first
// has it on record.
var (
	ownGRO  = bitOf(own, "rx-gro")
	peerGRO = bitOf(peer, "rx-gro")
)

func bitOf(table []setting, feature string) Mask {
	for bit, s := range table {
		if s.feature == feature {
			return 1 << bit
		}
	}
	panic("offload: no setting " + feature)
}

// Without returns the masks of what an instance changes, without what is on record as changed by the instance at the other end
// of the veth, whose record is theirs: such a change leaves the setting as it was before both.
func Without(self, other Mask, theirs Record) (Mask, Mask) {
	if Mask(theirs[Peer])&peerGRO != 0 {
		self &^= ownGRO
	}
	if Mask(theirs[Own])&ownGRO != 0 {
		other &^= peerGRO
	}
	return self, other
}

// Left returns the mask of what is to be put back at an interface that has no native program any more, with what the instance at
// the other end of the veth, whose record is theirs, had changed there and needs still.
func Left(self Mask, theirs Record) Mask {
	if Mask(theirs[Peer])&peerGRO != 0 {
		self |= ownGRO
	}
	return self
}
