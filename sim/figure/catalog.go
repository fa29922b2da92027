package figure

// Names of the three ways to run Clover.
const (
	nameDefault   = "Clover (default)"
	nameWrite     = "Write steering"
	nameReadWrite = "Write + read steering"
)

// All are the figures that can be rerun, in the order of the papers.
func All() []*Figure {
	return []*Figure{
		{
			ID: "words21-3", data: "words21-3", jobs: memoryJobs,
			ratios: []ratio{{
				claim: "share of 64 MB that 262,144 keys take",
				of:    ref{0, nameMetadata, 262144}, to: ref{x: float64(64 << 20)},
			}},
			reasons: []reason{
				{series: nameMetadata, least: 1, most: 70, text: reasonAddresses},
				{ratio: true, series: "share of 64 MB that 262,144 keys take", least: 1, most: 70, text: reasonAddresses},
			},
		},
	}
}

const reasonAddresses = "The paper counts 16 bytes: a key and its tail. Here these take 52, with the memory node, what is believed of the tail, and an index " +
	"that is at most half full; and a request for an old entry is only steered when the entry's key is known, so 16 to 64 entry addresses a key " +
	"are remembered, 16 bytes each."
