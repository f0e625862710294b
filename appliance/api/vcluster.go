package api

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// VCluster is the use of the machine by one virtual cluster, for the metrics. `rivulet vcluster list` shows more.
type VCluster struct {
	Name  string
	State string // Starting, Awake, Asleep, Paused, Failed or Deleting
	// Memory is that of its process alone, MemoryLimit its bound; Disk is the size of its files, Datastore the part of
	// its bound DatastoreLimit in use; bytes.
	Memory, MemoryLimit, Disk, Datastore, DatastoreLimit int64
	// Pods are the unfinished ones on the host; Use has their requests, and its claims; Quota bounds it.
	Pods       int
	Use, Quota corev1.ResourceList
	// Started is how long the last start took until it was usable; 0 before.
	Started time.Duration
	Created time.Time
}
