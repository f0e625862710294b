// Package paths has the names of a device's files: in its state folder (--state, /var/lib/rivulet by default), which is
// the argument of each function, and in its configuration folder. docs/reference/files.md lists all files.
package paths

import "path/filepath"

// Config is the folder of the configuration.
const Config = "/etc/rivulet"

// StateDisk is the record of the disk that has the state, in the folder of the configuration.
func StateDisk(config string) string { return filepath.Join(config, "state-disk.json") }

// Store is the bbolt database with identity, peers and settings.
func Store(state string) string { return filepath.Join(state, "state.db") }

// GoodConfig is the copy of the last valid configuration file.
func GoodConfig(state string) string { return filepath.Join(state, "config.good.yaml") }

// Volumes is the folder of local volumes.
func Volumes(state string) string { return filepath.Join(state, "storage") }

// VirtualClusters is the folder of the virtual clusters' states.
func VirtualClusters(state string) string { return filepath.Join(state, "vclusters") }

// EndedVirtualClusters has the seeds of deleted virtual clusters, one a line.
func EndedVirtualClusters(state string) string { return filepath.Join(state, "vclusters-ended") }

// Versions is the folder of downloaded and former programs.
func Versions(state string) string { return filepath.Join(state, "versions") }

// LastBackup has when a user has saved the cluster.
func LastBackup(state string) string { return filepath.Join(state, "backup.json") }

// Worker has the cluster that a worker belongs to.
func Worker(state string) string { return filepath.Join(state, "worker.json") }

// Standby has what a worker needs to become the server of its cluster.
func Standby(state string) string { return filepath.Join(state, "standby.json") }

// Gateway has the part of this device as the server of a cluster with standby servers; DeviceStore is the store of its
// own identity meanwhile.
func Gateway(state string) string { return filepath.Join(state, "gateway.json") }

// DeviceStore is the store of a device's own identity while Store has the cluster's.
func DeviceStore(state string) string { return filepath.Join(state, "device.db") }

// Kubeconfig is the administrator's; on a worker it has the rights of its supervisor.
func Kubeconfig(state string) string { return filepath.Join(state, "kubeconfig") }

// History is the folder of the figures of the last day.
func History(state string) string { return filepath.Join(state, "history") }

// Logs is the folder of the engine's and the tunnel's logs.
func Logs(state string) string { return filepath.Join(state, "log") }

// EngineLog is the log of the engine.
func EngineLog(state string) string { return filepath.Join(Logs(state), "engine.log") }

// TunnelLog is the log of the tunnel.
func TunnelLog(state string) string { return filepath.Join(Logs(state), "tunnel.log") }

// Server is the folder of the engine's server: certificates, tokens, datastore.
func Server(state string, elem ...string) string {
	return filepath.Join(append([]string{state, "k3s", "server"}, elem...)...)
}

// Agent is the folder of the engine's agent: kubelet and containerd.
func Agent(state string, elem ...string) string {
	return filepath.Join(append([]string{state, "k3s", "agent"}, elem...)...)
}

// SQLCluster has the token of a cluster whose objects are in an SQL server, and the name of that database.
func SQLCluster(state string) string { return filepath.Join(state, "k3s-sql.json") }

// Workers has the nodes of other devices that the engine serves.
func Workers(state string) string { return filepath.Join(state, "k3s-workers.json") }

// Settled marks a cluster that has served, or was restored from a backup: it is never begun anew.
func Settled(state string) string { return filepath.Join(state, "k3s-settled") }

// Writer has the version of Kubernetes that has written the datastore, beside it, so that both are backed up, restored and
// removed together.
func Writer(state string) string { return Server(state, "writer.json") }

// Datastore is kine's database.
func Datastore(state string) string { return Server(state, "db", "state.db") }
