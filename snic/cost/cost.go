// Package cost computes what a rack's network costs: to buy (CapEx), for each endpoint and for five
// designs, and to run (OpEx), by the time that regions are used. Prices are numbers without a currency.
//
// # CapEx
//
// K is the number of endpoints that share a device, r the share of a NIC's
// price that is in its network tasks, c the peak of the sum of the endpoints'
// loads over the sum of their peaks. Each endpoint pays for:
//
//	no disaggregation     NIC + cable + port
//	NIC-enhanced switch   small NIC + cable + port       + NIC + (port + cable)/K
//	multi-host NIC        small NIC + short cable        + NIC + (port + cable)/K
//	sNIC, switch-attached small NIC + cable + port       + NIC·(1-r + r·c) + (port + cable)/K
//	sNIC, middle layer    small NIC + short cable        + NIC·(1-r + r·c) + (port + cable)/K
//
// The first column is for the endpoint alone: a whole NIC, or a NIC with only the physical and link
// layers; and a cable to a port of the switch or, shorter, to the shared device. The second column is
// the endpoint's part of the shared device: of its tasks, provisioned for the peak of the sum if the
// device scales them, else for the sum of peaks; of everything else in it; and of the port and cable
// that join it to the switch.
//
// The source's appendix with its formulas is not available. These formulas are derived from its
// parameters, from the five bars of its figure 5.8 (849.999, 1037.499, 747.499, 690.999, 401.000), which
// they reproduce to the cent, and from the text of section 5.7.1 about each design. Three choices
// agree with the bars, but other choices would, too:
//
//   - The part of a NIC that is not tasks (1-r) is paid once for each endpoint. It could also
//     grow with the number of a device's ports; the sum is the same.
//   - NIC-enhanced switch: "added switch ports and NICs" is read as a whole NIC
//     for each endpoint at the switch, joined to it by one port and cable for K.
//   - c is rounded to 0.23, which is figure 5.2's Hadoop, rack over not
//     consolidated (848.7/3688.9), the least favourable of the three traces.
//
// # OpEx
//
// OpEx counts as the source does: only the time of regions that are accessed, because only these draw
// dynamic power; a region that is programmed and idle costs nothing. A region that is being reconfigured
// counts as accessed, because the source's OpEx rises with every relaunch. A rack that provisions
// statically pays for its regions all the time.
//
// Source: Shan, SuperNIC (UCSD thesis, 2022, chapter 5), sections 5.7.1 and
// 5.7.2.
package cost

import (
	"errors"
	"fmt"
	"math"
)

// Prices of parts.
type Prices struct {
	Port       float64 `json:"switch_port"` // of the switch
	NIC        float64 `json:"nic"`         // a whole one
	SmallNIC   float64 `json:"small_nic"`   // physical and link layers alone
	Cable      float64 `json:"cable"`
	ShortCable float64 `json:"short_cable"`
	// Tasks is the share of a NIC's price that is in its network tasks.
	Tasks float64 `json:"task_share"`
}

// Published returns the source's prices.
func Published() Prices {
	return Prices{Port: 250, NIC: 500, SmallNIC: 100, Cable: 100, ShortCable: 60, Tasks: 0.9}
}

// The source's rack: four endpoints share a device, and need 0.23 of what they
// need apart.
const (
	PublishedSharing = 4
	PublishedPeaks   = 0.23
)

// Check returns an error for a price that is not possible.
func (p Prices) Check() error {
	for _, c := range []struct {
		name string
		v    float64
	}{{"switch port", p.Port}, {"NIC", p.NIC}, {"small NIC", p.SmallNIC}, {"cable", p.Cable}, {"short cable", p.ShortCable}} {
		if !(c.v >= 0) || math.IsInf(c.v, 0) {
			return fmt.Errorf("the price of a %s must be a number, and not negative", c.name)
		}
	}
	if !(p.Tasks >= 0 && p.Tasks <= 1) {
		return errors.New("the share of tasks in a NIC's price must be from 0 to 1")
	}
	return nil
}

// Design says how a rack's network tasks are placed.
type Design uint8

// Designs.
const (
	NotDisaggregated Design = iota
	EnhancedSwitch
	MultiHostNIC
	SwitchAttached
	MiddleLayer
	Designs // how many there are
)

func (d Design) String() string {
	return [...]string{"no disaggregation", "NIC-enhanced switch", "multi-host NIC", "sNIC, switch-attached", "sNIC, middle layer"}[d]
}

// Bill lists what an endpoint pays for.
type Bill struct {
	NIC    float64 `json:"nic"`    // at the endpoint
	Cable  float64 `json:"cable"`  // of the endpoint
	Port   float64 `json:"port"`   // of the endpoint at the switch
	Device float64 `json:"device"` // its part of the shared device
	Uplink float64 `json:"uplink"` // its part of the device's port and cable
}

// Total returns the sum of a Bill.
func (b Bill) Total() float64 { return b.NIC + b.Cable + b.Port + b.Device + b.Uplink }

// CapEx returns the bill of an endpoint in a design where sharing endpoints share a device. peaks is the
// peak of the sum of their loads over the sum of their peaks, from 0 to 1.
func (p Prices) CapEx(d Design, sharing, peaks float64) Bill {
	if d == NotDisaggregated {
		return Bill{NIC: p.NIC, Cable: p.Cable, Port: p.Port}
	}
	b := Bill{NIC: p.SmallNIC, Cable: p.Cable, Port: p.Port, Device: p.NIC, Uplink: (p.Port + p.Cable) / sharing}
	if d == MultiHostNIC || d == MiddleLayer {
		b.Cable, b.Port = p.ShortCable, 0
	}
	if d == SwitchAttached || d == MiddleLayer {
		b.Device = p.NIC * (1 - p.Tasks + p.Tasks*peaks)
	}
	return b
}

// Running holds the prices of running regions.
type Running struct {
	// RegionHour is the price of an hour of one region.
	RegionHour float64 `json:"region_hour"`
	// Watts is what a region draws while it is accessed, KWh the price of a
	// kilowatt hour.
	Watts float64 `json:"watts"`
	KWh   float64 `json:"kwh"`
}

// Check returns an error for a price that is not possible.
func (r Running) Check() error {
	for _, v := range []float64{r.RegionHour, r.Watts, r.KWh} {
		if !(v >= 0) || math.IsInf(v, 0) {
			return errors.New("prices of running must be numbers, and not negative")
		}
	}
	return nil
}

// OpEx returns the price of so many region-hours.
func (r Running) OpEx(regionHours float64) float64 {
	return regionHours * (r.RegionHour + r.Watts/1000*r.KWh)
}
