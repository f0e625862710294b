package vcluster

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	// meterEvery is the interval in which what is in use is added up, keepMeter how often the sum is written: a power cut
	// loses as much.
	meterEvery, keepMeter = time.Minute, time.Hour
	gibibyte              = 1 << 30
)

// Consumed is what a virtual cluster has had since its creation, over time.
type Consumed struct {
	// Awake is how long its control plane has run, hours.
	Awake float64 `json:"awake"`
	// CPU and Memory are of its pods' requests on this device, core hours and GiB hours.
	CPU    float64 `json:"cpu"`
	Memory float64 `json:"memory"`
	// Storage is of its claims, GiB hours.
	Storage float64 `json:"storage"`
}

// add adds what was in use for a time.
func (c *Consumed) add(use corev1.ResourceList, awake bool, hours float64) {
	if awake {
		c.Awake += hours
	}
	c.CPU += float64(use.Cpu().MilliValue()) / 1000 * hours
	c.Memory += float64(use.Memory().Value()) / gibibyte * hours
	storage := use[corev1.ResourceStorage]
	c.Storage += float64(storage.Value()) / gibibyte * hours
}

// meter adds up what all use until ctx ends.
func meter(ctx context.Context, k *Manager) {
	tick := time.NewTicker(k.pace.meter)
	defer tick.Stop()
	last, kept, written := time.Now(), time.Now(), map[string]Consumed{}
	for more := true; more; {
		select {
		case <-ctx.Done():
			more = false
		case <-tick.C:
		}
		now := time.Now()
		hours := min(now.Sub(last), 2*k.pace.meter).Hours() // a machine that was suspended used nothing
		keep := !more || now.Sub(kept) >= keepMeter
		if last = now; keep {
			kept = now
		}
		for _, v := range k.Briefs() {
			c, err := k.get(v.Name)
			if err != nil {
				continue // it is deleted
			}
			var use corev1.ResourceList
			if host := k.host.Load(); host != nil {
				use = (*host).Use(c.record().ID)
			}
			c.mu.Lock()
			if !c.rec.Deleting {
				c.rec.Consumed.add(use, c.proc != nil, hours)
				if keep && written[c.name] != c.rec.Consumed { // one that has nothing costs no write
					if err := k.save(c.rec); err != nil {
						k.cfg.Log.Warn("what a virtual cluster has consumed is not written", "name", c.name, "err", err)
					} else {
						written[c.name] = c.rec.Consumed
					}
				}
			}
			c.mu.Unlock()
		}
	}
}
