package api

import "rivulet/fabric/peer"

// Facts are what stays the same while a supervisor runs.
type Facts struct {
	Name       string  `json:"name"`
	NodeName   string  `json:"nodeName"`
	ID         peer.ID `json:"id"`
	Version    string  `json:"version"`
	Kubernetes string  `json:"kubernetes"`
	// Executable is the file of the supervisor when it began, BuildID what it was built as.
	Executable string `json:"executable"`
	BuildID    string `json:"buildID"`
}
