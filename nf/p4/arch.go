package p4

// architecture is what lies around a program's parsers, pipelines and deparsers: it takes a packet through them, and sets and
// obeys the metadata that belongs to it.
type architecture interface {
	// name is the architecture's name in P4Info.
	name() string
	// parsers and deparsers return the names of the blocks in the JSON.
	parsers() [numBlocks]string
	deparsers() [numBlocks]string
	// primitive returns the primitive with a name, and whether there is one.
	primitive(name string) (primitive, bool)
	// classes is the number of priorities, or classes of service, that a packet may have.
	classes() int
	// ports returns the highest number of a port, and the number of the port to the controller.
	ports() (highest uint64, cpu uint32)
	// begin sets what a new switch has before its controller says anything.
	begin(s *Switch)
	// arrive sets the metadata of a packet that came in on a port.
	arrive(s *Switch, k *packetState, port uint32)
	// ingress and egress take a packet through a pipeline, queue what comes of it, and end the packet.
	ingress(s *Switch, k *packetState)
	egress(s *Switch, k *packetState)
}

// architecture finds out for which architecture the program was compiled: the JSON does not name it, but its metadata has
// the architecture's names.
func (l *shapes) architecture() {
	if l.names[psaMark] == nil {
		l.p.arch = &l.p.std
		l.standard()
		return
	}
	a := &psa{}
	l.p.arch = a
	l.standard()
	l.psa(a)
}

// Arch returns the name of the architecture that the program was compiled for: v1model or psa.
func (p *Program) Arch() string { return p.arch.name() }

// Classes returns the number of priorities, or classes of service, that a packet may have.
func (p *Program) Classes() int { return p.arch.classes() }
