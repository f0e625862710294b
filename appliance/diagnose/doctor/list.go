package doctor

// The order of the report: whether rivulet runs, the machine, the network, the cluster's needs, the disk, the hardware.
var probes = []Probe{
	supervisor, memory, memoryCgroup, cgroupVersion, cgroupControllers, kernel, limits, tun, kmsg, lsm, clock, clockBehind,
	lan, defaultRoute, dnsUpstream, multicast, hostname, udp, firewall, podNetwork, serviceRules,
	admission, manifestsOfK3s, podsWaiting, ports, cidr, iptables, leftovers,
	diskSpace, logSpace, diskSpeed, filesystem, overlay, cardLife, swap, osDisks, bootFiles,
	power, temperature, kernelCrash,
}
