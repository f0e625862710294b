package cli

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"rivulet/appliance/api"
	"rivulet/appliance/diagnose/fleet"
)

const (
	// fleetEvery is the interval of status --fleet --watch; fleetLimit is longer than the supervisor takes.
	fleetEvery, fleetLimit = 5 * time.Second, 20 * time.Second
)

func getFleet(c *common) func(context.Context) (fleet.Answer, error) {
	return func(ctx context.Context) (a fleet.Answer, err error) {
		return a, api.CallWithin(ctx, fleetLimit, c.dirs.Run, http.MethodGet, fleet.Path, nil, &a)
	}
}

// printFleet prints a line for each device; with wide also its ID, version, capacity and round trip.
func printFleet(out io.Writer, a fleet.Answer, wide bool, now time.Time) error {
	head := "DEVICE\tSTATE\tERRORS\tWARNINGS\tPODS\tPEERS\tUP\tWORST"
	if wide {
		head += "\tID\tVERSION\tCPU LEFT\tMEMORY LEFT\tRTT"
	}
	err := table(out, "", head, a.Members, func(m fleet.Member) []any {
		name := m.Name
		if m.Here {
			name += " (here)"
		}
		if m.Summary == nil {
			worst := "-"
			if m.State == fleet.Silent && !m.Seen.IsZero() {
				worst = "last answer " + since(now, m.Seen) + " ago"
			}
			row := []any{name, m.Verdict(), "-", "-", "-", "-", "-", worst}
			if wide {
				row = append(row, m.ID.Short(), "-", "-", "-", rtt(m.RTT))
			}
			return row
		}
		row := []any{name, m.Verdict(), m.Errors, m.Warnings, places(m.Pods), fmt.Sprintf("%d of %d", m.Peers.Connected, m.Peers.All), since(now, now.Add(-time.Duration(m.Up)*time.Second)), worstOf(*m.Summary)}
		if wide {
			c := m.Capacity
			row = append(row, m.ID.Short(), dash(m.Version), fmt.Sprintf("%.1f of %.1f", float64(c.CPUFree)/1000, float64(c.CPU)/1000),
				fmt.Sprintf("%.1f of %.1f Gi", float64(c.MemoryFree)/(1<<30), float64(c.Memory)/(1<<30)), rtt(m.RTT))
		}
		return row
	})
	if err != nil {
		return err
	}
	if a.More > 0 {
		fmt.Fprintf(out, "\nand %d more devices, which were not queried\n", a.More)
	}
	if len(a.Members) == 1 && a.More == 0 {
		fmt.Fprintln(out, "\nno other device of a group is a peer: trust: {mode: group} in the configuration of each, with one secret")
	}
	if !a.Allowed {
		fmt.Fprintln(out, "\nthis device is not shown to the others; to show it: fleet: true in the configuration, then rivulet config reload")
	}
	return nil
}

// places are the pods of a device: at home, away, of tenants.
func places(n api.Pods) string {
	return fmt.Sprintf("%d+%d away+%d tenants", n.Home, n.Away, n.Tenants)
}

// worstOf are the titles of the worst problems, at most two.
func worstOf(s fleet.Summary) string {
	var titles []string
	for _, p := range s.Problems[:min(len(s.Problems), 2)] {
		titles = append(titles, p.Title+" ["+p.Code+"]")
	}
	if more := s.Errors + s.Warnings - len(titles); len(titles) > 0 && more > 0 {
		titles = append(titles, fmt.Sprintf("and %d more", more))
	}
	return dash(strings.Join(titles, "; "))
}
