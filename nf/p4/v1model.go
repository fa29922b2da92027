package p4

// v1model's parser belongs to ingress, and its deparser to egress. Standard is the architecture: it is all fields that
// simple_switch uses.

func (std *standard) name() string { return "v1model" }

func (std *standard) parsers() [numBlocks]string { return [numBlocks]string{blockIngress: anyName} }

func (std *standard) deparsers() [numBlocks]string { return [numBlocks]string{blockEgress: anyName} }

func (std *standard) primitive(name string) (primitive, bool) {
	p, ok := primitives[name]
	return p, ok
}

// classes implements architecture: the field has three bits.
func (std *standard) classes() int { return 1 << 3 }

// ports implements architecture. v1model has no port to the controller; many programs take 510.
func (std *standard) ports() (highest uint64, cpu uint32) { return std.egressSpec.mask, 510 }

// begin implements architecture.
func (std *standard) begin(*Switch) {}

// arrive implements architecture.
func (std *standard) arrive(s *Switch, k *packetState, port uint32) {
	std.ingressPort.set(k, uint64(port))
	std.packetLength.set(k, uint64(len(k.frame)))
	std.ingressTime.set(k, s.micros)
}

// ingress implements architecture.
func (std *standard) ingress(s *Switch, k *packetState) {
	if !s.pass(k) {
		return
	}
	size := k.length
	s.copied = k.copied
	s.event(EventReceived, int(s.port), uint64(len(k.frame)))
	s.event(EventStage, stageParser, 0)
	s.parse(k, blockIngress)
	std.parserError.set(k, uint64(k.parseError))
	std.checksumError.set(k, b2u(k.badChecksum))
	s.event(EventStage, stageIngress, 0)
	s.apply(k, s.prog.ingress)
	if k.failed != NotDropped {
		s.drop(k, k.failed)
		return
	}
	if k.session&sessionValid != 0 {
		std.cloneIngress(s, k, size)
	}
	if k.digest != 0 {
		s.sendDigest(k, int(k.digest))
	}
	if k.resubmitted != 0 {
		c := s.copyOf(k)
		s.event(EventResubmit, 0, uint64(c.copied))
		s.preserve(c, k, k.resubmitted)
		std.instanceType.set(c, instanceResubmitted)
		c.length = size
		std.packetLength.set(c, size)
		s.give(k)
		s.in = append(s.in, c)
		return
	}
	if g := std.group.get(k); g != 0 {
		std.instanceType.set(k, instanceReplica)
		s.event(EventMulticast, int(g), 0)
		if s.multicast(k, s.replicas(uint32(g))) == 0 {
			s.drop(k, NoReplica)
			return
		}
		s.give(k)
		return
	}
	spec := uint32(std.egressSpec.get(k))
	if spec == s.cfg.DropPort {
		s.drop(k, s.notForwarded(k))
		return
	}
	std.instanceType.set(k, instanceNormal)
	s.enqueue(k, spec)
}

// cloneIngress makes clones of the packet as it was when ingress began.
func (std *standard) cloneIngress(s *Switch, k *packetState, size uint64) {
	ses, ok := s.session(k.session & 0x7fff)
	if !ok {
		return
	}
	c := s.copyOf(k)
	std.ingressPort.set(c, std.ingressPort.get(k))
	if s.trace != nil {
		s.event(EventClone, int(k.session&^sessionValid), uint64(c.copied))
		s.copied = c.copied
		s.event(EventStage, stageParser, 0)
	}
	s.parse(c, blockIngress)
	s.clearMetadata(c)
	s.preserve(c, k, k.cloneList)
	std.instanceType.set(c, instanceIngressClone)
	c.length, c.cut = size, ses.Length
	s.toSession(c, ses)
	s.copied = k.copied
	s.give(c)
}

// egress implements architecture.
func (std *standard) egress(s *Switch, k *packetState) {
	if !s.pass(k) {
		return
	}
	s.copied = k.copied
	s.event(EventStage, stageEgress, 0)
	k.session, k.cloneList, k.digest, k.resubmitted = 0, 0, 0, 0
	std.egressTime.set(k, s.micros)
	std.deqTime.set(k, 0)
	std.deqDepth.set(k, 0)
	std.qid.set(k, std.priority.get(k))
	std.egressPort.set(k, uint64(k.port))
	std.egressSpec.set(k, uint64(s.cfg.DropPort)+1)
	std.packetLength.set(k, k.length)
	s.apply(k, s.prog.egress)
	if k.failed != NotDropped {
		s.drop(k, k.failed)
		return
	}
	if k.session&sessionValid != 0 {
		if ses, ok := s.session(k.session & 0x7fff); ok {
			c := s.replicate(k)
			s.event(EventClone, int(k.session&^sessionValid), uint64(c.copied))
			s.clearMetadata(c)
			s.preserve(c, k, k.cloneList)
			std.instanceType.set(c, instanceEgressClone)
			c.cut = ses.Length
			s.toSession(c, ses)
			s.copied = k.copied
			s.give(c)
		}
	}
	if uint32(std.egressSpec.get(k)) == s.cfg.DropPort {
		s.drop(k, EgressDrop)
		return
	}
	s.event(EventStage, stageDeparser, 0)
	frame := s.deparse(k, blockEgress)
	if k.failed != NotDropped {
		s.drop(k, k.failed)
		return
	}
	if k.cut != 0 && len(frame) > k.cut { // a clone, also one that is recirculated
		frame = frame[:k.cut]
	}
	if k.recirculate != 0 {
		c := s.copyWith(k, frame)
		s.event(EventRecirculate, 0, uint64(c.copied))
		s.preserve(c, k, k.recirculate)
		std.instanceType.set(c, instanceRecirculated)
		c.length, c.arrived = uint64(len(frame)), len(frame)
		std.packetLength.set(c, c.length)
		s.give(k)
		s.in = append(s.in, c)
		return
	}
	if len(frame) > k.truncate {
		frame = frame[:k.truncate]
	}
	s.result.Emitted++
	s.event(EventEmit, int(k.port), uint64(len(frame)))
	s.emit(k.port, frame)
	s.give(k)
}

// preserve copies the fields of a list; an unknown list has no fields.
func (s *Switch) preserve(to, from *packetState, list uint32) {
	if int(list) >= len(s.prog.lists) {
		return
	}
	for _, r := range s.prog.lists[list] {
		copy(to.v[r.slot:r.slot+r.n], from.v[r.slot:])
	}
}

// clearMetadata zeroes the metadata, which a clone does not inherit.
func (s *Switch) clearMetadata(k *packetState) {
	for _, h := range s.prog.headers {
		if h.meta {
			clear(k.v[h.base+1 : h.base+h.typ.words])
		}
	}
}
