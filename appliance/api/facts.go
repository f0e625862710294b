package api

import "rivulet/fabric/peer"

// Facts are constant while a supervisor runs.
type Facts struct {
	Name       string  `json:"name"`
	NodeName   string  `json:"nodeName"`
	ID         peer.ID `json:"id"`
	Version    string  `json:"version"`
	Kubernetes string  `json:"kubernetes"`
	// Executable is the supervisor's file at its start, BuildID its build.
	Executable string `json:"executable"`
	BuildID    string `json:"buildID"`
}
