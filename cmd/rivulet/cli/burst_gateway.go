package cli

import (
	"encoding/json"
	"fmt"
	"time"

	"rivulet/offload/gatewaypod"
)

// gatewayRows describe the connection between pods at a campus and home; view is the supervisor's answer.
func gatewayRows(view any, row func(key, value string)) error {
	if view == nil {
		return nil
	}
	raw, err := json.Marshal(view)
	if err != nil {
		return err
	}
	var s gatewaypod.Status
	if err := json.Unmarshal(raw, &s); err != nil {
		return err
	}
	row("gateway", s.Pod)
	if !s.Ready {
		row("not reached", s.Reason)
	}
	if s.Transport != "" {
		row("path", fmt.Sprintf("%s, round trip %s, %s/s in, %s/s out", s.Transport, s.RTT.Round(10*time.Microsecond), size(s.Receiving), size(s.Sending)))
		row("carried", fmt.Sprintf("%s in, %s out; open: %d TCP, %d UDP; refused: %d", size(s.Received), size(s.Sent), s.Flows.TCP, s.Flows.UDP, s.Flows.Refused))
	}
	if s.Prefix.IsValid() {
		row("pods there", fmt.Sprintf("%s at home; %d Services of home there", s.Prefix, s.Services))
	}
	for _, p := range s.Problems {
		row("problem", p)
	}
	return nil
}
