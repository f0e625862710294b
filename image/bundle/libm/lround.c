/*
 * The one function of libm that the bundled iptables calls: the extension
 * statistic, with which kube-proxy spreads connections, rounds a probability.
 * The whole library is 0.9 MB on disk and 0.35 MB in the release.
 */
long lround(double x)
{
	long whole = (long)x;
	double rest = x - (double)whole;

	if (rest >= 0.5)
		return whole + 1;
	if (rest <= -0.5)
		return whole - 1;
	return whole;
}
