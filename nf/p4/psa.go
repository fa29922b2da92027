package p4

// psa is the Portable Switch Architecture, version 1.2, with its metadata under the names that psa_switch gives it.
//
// Between ingress and egress a frame is bytes: ingress's deparser makes them, and egress's parser reads them. User metadata
// passes with a frame that goes to egress. Clones, and frames that come again to ingress, begin with no metadata, because
// p4c compiles no assignments to resubmit_meta, recirculate_meta and the metadata of clones.
type psa struct {
	// Ingress: what the parser and the pipeline find, and what the pipeline sets.
	parserPort, parserPath, port, path, time, parseError  stdField
	class, clone, session, drop, resubmit, group, unicast stdField
	outParserPort, outParserPath                          stdField
	outPort, outPath, outTime, outParseError              stdField
	outClone, outSession, outDrop, outDeparserPort        stdField
	headers                                               []copyRange // that are no metadata
}

// psaMark is a header that the JSON of every program for PSA has, and no other program.
const psaMark = "psa_ingress_parser_input_metadata"

// Ports of PSA that are not on the outside.
const (
	psaPortRecirculate = 0xfffffffa
	psaPortCPU         = 0xfffffffd
)

// The values of PSA_PacketPath_t.
const (
	pathNormal = iota
	pathUnicast
	pathMulticast
	pathCloneIngress
	pathCloneEgress
	pathResubmit
	pathRecirculate
)

// psa finds the fields that the architecture uses.
func (l *shapes) psa(a *psa) {
	for _, x := range []struct {
		to           *stdField
		header, name string
	}{
		{&a.parserPort, psaMark, "ingress_port"},
		{&a.parserPath, psaMark, "packet_path"},
		{&a.port, "psa_ingress_input_metadata", "ingress_port"},
		{&a.path, "psa_ingress_input_metadata", "packet_path"},
		{&a.time, "psa_ingress_input_metadata", "ingress_timestamp"},
		{&a.parseError, "psa_ingress_input_metadata", "parser_error"},
		{&a.class, "psa_ingress_output_metadata", "class_of_service"},
		{&a.clone, "psa_ingress_output_metadata", "clone"},
		{&a.session, "psa_ingress_output_metadata", "clone_session_id"},
		{&a.drop, "psa_ingress_output_metadata", "drop"},
		{&a.resubmit, "psa_ingress_output_metadata", "resubmit"},
		{&a.group, "psa_ingress_output_metadata", "multicast_group"},
		{&a.unicast, "psa_ingress_output_metadata", "egress_port"},
		{&a.outParserPort, "psa_egress_parser_input_metadata", "egress_port"},
		{&a.outParserPath, "psa_egress_parser_input_metadata", "packet_path"},
		{&l.p.std.priority, "psa_egress_input_metadata", "class_of_service"},
		{&a.outPort, "psa_egress_input_metadata", "egress_port"},
		{&a.outPath, "psa_egress_input_metadata", "packet_path"},
		{&l.p.std.rid, "psa_egress_input_metadata", "instance"},
		{&a.outTime, "psa_egress_input_metadata", "egress_timestamp"},
		{&a.outParseError, "psa_egress_input_metadata", "parser_error"},
		{&a.outClone, "psa_egress_output_metadata", "clone"},
		{&a.outSession, "psa_egress_output_metadata", "clone_session_id"},
		{&a.outDrop, "psa_egress_output_metadata", "drop"},
		{&a.outDeparserPort, "psa_egress_deparser_input_metadata", "egress_port"},
	} {
		if *x.to = stdFieldOf(l.names[x.header], x.name); x.to.slot < 0 {
			l.fail("no field %s.%s: this is no program for PSA: compile with a current p4c-bm2-psa", x.header, x.name)
		}
	}
	for _, h := range l.p.headers {
		if !h.meta {
			a.headers = append(a.headers, copyRange{h.base, h.typ.words})
		}
	}
	for _, s := range l.stacks {
		a.headers = append(a.headers, copyRange{s.next, 1})
	}
	for _, s := range l.ustks {
		a.headers = append(a.headers, copyRange{s.next, 1})
	}
}

func (a *psa) name() string { return "psa" }

func (a *psa) parsers() [numBlocks]string {
	return [numBlocks]string{"ingress_parser", "egress_parser"}
}

func (a *psa) deparsers() [numBlocks]string {
	return [numBlocks]string{"ingress_deparser", "egress_deparser"}
}

// classes implements architecture: the field has eight bits.
func (a *psa) classes() int { return 1 << 8 }

// ports implements architecture.
func (a *psa) ports() (highest uint64, cpu uint32) { return a.unicast.mask, psaPortCPU }

// begin implements architecture: the clone session PSA_CLONE_SESSION_TO_CPU is there from the start.
func (a *psa) begin(s *Switch) {
	s.sessions = []session{{Session{Replicas: []Replica{{Port: psaPortCPU}}}, true}}
}

// arrive implements architecture.
func (a *psa) arrive(_ *Switch, k *packetState, port uint32) { a.enter(k, port, pathNormal) }

// enter sets what the parser of ingress finds.
func (a *psa) enter(k *packetState, port uint32, path uint64) {
	a.parserPort.set(k, uint64(port))
	a.parserPath.set(k, path)
}

// ingress implements architecture.
func (a *psa) ingress(s *Switch, k *packetState) {
	if !s.pass(k) {
		return
	}
	s.copied = k.copied
	s.event(EventReceived, int(a.parserPort.get(k)), uint64(len(k.frame)))
	a.time.set(k, s.micros)
	s.event(EventStage, stageParser, 0)
	s.parse(k, blockIngress)
	a.port.set(k, a.parserPort.get(k))
	a.path.set(k, a.parserPath.get(k))
	a.parseError.set(k, uint64(k.parseError))
	a.class.set(k, 0)
	a.clone.set(k, 0)
	a.drop.set(k, 1)
	a.resubmit.set(k, 0)
	a.group.set(k, 0)
	s.event(EventStage, stageIngress, 0)
	s.apply(k, s.prog.ingress)
	if k.failed != NotDropped {
		s.drop(k, k.failed)
		return
	}
	if a.clone.get(k) != 0 {
		a.cloneTo(s, k, a.session, k.frame, pathCloneIngress)
	}
	switch {
	case a.drop.get(k) != 0:
		s.drop(k, s.notForwarded(k))
	case a.resubmit.get(k) != 0:
		c := s.copyOf(k)
		s.event(EventResubmit, 0, uint64(c.copied))
		a.enter(c, uint32(a.parserPort.get(k)), pathResubmit)
		s.give(k)
		s.in = append(s.in, c)
	default:
		a.forward(s, k)
	}
}

// forward queues a packet for egress, with the bytes that ingress's deparser makes.
func (a *psa) forward(s *Switch, k *packetState) {
	s.event(EventStage, stageDeparser, 0)
	frame := s.deparse(k, blockIngress)
	if k.failed != NotDropped {
		s.drop(k, k.failed)
		return
	}
	k.own = append(k.own[:0], frame...)
	k.frame, k.at = k.own, 0
	class := a.class.get(k)
	if class >= uint64(s.cfg.Queues) {
		class = 0 // PSA's class for packets with a class that the switch does not have
	}
	s.prog.std.priority.set(k, class)
	if g := a.group.get(k); g != 0 {
		a.outParserPath.set(k, pathMulticast)
		s.event(EventMulticast, int(g), 0)
		if s.multicast(k, s.replicas(uint32(g))) == 0 {
			s.drop(k, NoReplica)
			return
		}
		s.give(k)
		return
	}
	a.outParserPath.set(k, pathUnicast)
	s.prog.std.rid.set(k, 0)
	s.enqueue(k, uint32(a.unicast.get(k)))
}

// cloneTo queues clones with a frame for egress, to the session whose id is in a field. The session may cut the frame.
func (a *psa) cloneTo(s *Switch, k *packetState, session stdField, frame []byte, path uint64) {
	id := uint32(session.get(k))
	ses, ok := s.session(id)
	if !ok {
		return
	}
	if ses.Length != 0 && len(frame) > ses.Length {
		frame = frame[:ses.Length]
	}
	c := s.copyWith(k, frame)
	s.event(EventClone, int(id), uint64(c.copied))
	a.outParserPath.set(c, path)
	s.toSession(c, ses)
	s.copied = k.copied
	s.give(c)
}

// egress implements architecture.
func (a *psa) egress(s *Switch, k *packetState) {
	if !s.pass(k) {
		return
	}
	s.copied = k.copied
	for _, r := range a.headers {
		clear(k.v[r.slot : r.slot+r.n])
	}
	a.outParserPort.set(k, uint64(k.port))
	a.outTime.set(k, s.micros)
	s.event(EventStage, stageParser, 0)
	s.parse(k, blockEgress)
	a.outPort.set(k, uint64(k.port))
	a.outPath.set(k, a.outParserPath.get(k))
	a.outParseError.set(k, uint64(k.parseError))
	a.outClone.set(k, 0)
	a.outDrop.set(k, 0)
	s.event(EventStage, stageEgress, 0)
	s.apply(k, s.prog.egress)
	if k.failed != NotDropped {
		s.drop(k, k.failed)
		return
	}
	a.outDeparserPort.set(k, uint64(k.port))
	s.event(EventStage, stageDeparser, 0)
	frame := s.deparse(k, blockEgress)
	if k.failed != NotDropped {
		s.drop(k, k.failed)
		return
	}
	if a.outClone.get(k) != 0 {
		a.cloneTo(s, k, a.outSession, frame, pathCloneEgress)
	}
	if a.outDrop.get(k) != 0 {
		s.drop(k, EgressDrop)
		return
	}
	if k.port == psaPortRecirculate {
		c := s.copyWith(k, frame)
		s.event(EventRecirculate, 0, uint64(c.copied))
		a.enter(c, psaPortRecirculate, pathRecirculate)
		s.give(k)
		s.in = append(s.in, c)
		return
	}
	s.result.Emitted++
	s.event(EventEmit, int(k.port), uint64(len(frame)))
	s.emit(k.port, frame)
	s.give(k)
}
